//! `help`: the help of commands, and the pages of the documentation, which come with the program.

use clap::CommandFactory;

use super::{
    args::{Cli, HelpArgs},
    output::print,
};
use crate::{
    error::{Error, Result, exit},
    shipped::shipped_under,
    words::did_you_mean,
};

pub fn run(args: &HelpArgs) -> Result<i32> {
    let mut command = Cli::command();
    command.build();
    let mut found = &mut command;
    for word in &args.topic {
        let names: Vec<String> = found
            .get_subcommands()
            .map(|c| c.get_name().into())
            .collect();
        if names.contains(word) {
            found = found.find_subcommand_mut(word).expect("it has this name");
            continue;
        }
        if let ([_], Some(text)) = (&args.topic[..], page(word)) {
            print(text)?;
            return Ok(exit::OK);
        }
        let known = names.iter().map(String::as_str);
        let known = known.chain(pages().map(|(name, _)| name.trim_end_matches(".md")));
        return Err(Error::refused(
            format!(
                "no command and no page is called `{}`",
                args.topic.join(" ")
            ),
            did_you_mean(word, known).unwrap_or_else(listed),
        ));
    }
    let of_command = found.render_long_help();
    let last = match &args.topic[..] {
        [] => listed(),
        [name] if page(name).is_some() => {
            format!("The page of this name: `tprimat help {name}.md`")
        }
        _ => return print(&of_command.to_string()).map(|()| exit::OK),
    };
    print(&format!("{of_command}\n{last}\n"))?;
    Ok(exit::OK)
}

/// The names and texts of all pages.
fn pages() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    shipped_under("docs/").chain(shipped_under("MIGRATING").map(|(_, text)| ("MIGRATING.md", text)))
}

/// `recipes` and `recipes.md` are the same page.
fn page(name: &str) -> Option<&'static str> {
    let stem = |name: &str| name.trim_end_matches(".md").to_lowercase();
    let (_, text) = pages().find(|(file, _)| stem(file) == stem(name))?;
    std::str::from_utf8(text).ok()
}

fn listed() -> String {
    let names: Vec<&str> = pages().map(|(name, _)| name).collect();
    format!("Pages of `tprimat help PAGE`: {}", names.join(", "))
}
