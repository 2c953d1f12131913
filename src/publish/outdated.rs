//! Marks what an earlier build published, where the last one ran and has no figures to put in its
//! place: who opens the folder must not take those figures for the last ones.

use std::{collections::BTreeMap, path::Path};

use crate::{
    digest::Digest,
    error::Result,
    files::{Durability, write_atomically},
};

/// Says it beside files that hold no text for people.
pub const NOTICE: &str = "OUTDATED.txt";
const BEGIN: &str = "OUTDATED: ";
/// Around the notice on the page.
const TAGS: [&str; 2] = ["<p role=\"alert\"><strong>OUTDATED: ", "</strong></p>\n"];

/// Marks the published `files` that nobody edited since, and lists them as they are then.
pub fn mark(
    folder: &Path,
    matrix: &str,
    why: &str,
    files: &BTreeMap<String, Digest>,
) -> Result<BTreeMap<String, Digest>> {
    let notice = format!(
        "the figures here are of an earlier build of `{matrix}`. The last build has none: {why}. The next one that has some \
         replaces them."
    );
    let mut marked = files.clone();
    let mut write = |name: &str, text: String| -> Result<()> {
        write_atomically(&folder.join(name), text.as_bytes(), Durability::Plain)?;
        marked.insert(name.to_owned(), Digest::of(text));
        Ok(())
    };
    let as_text: fn(&str, &str) -> String = above;
    for (name, marked) in [
        ("compare.txt", as_text),
        ("compare.md", as_text),
        (crate::report::PAGE, on_page),
    ] {
        let path = folder.join(name);
        let Some(digest) = files.get(name) else {
            continue;
        };
        // A link may lead anywhere.
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        let Some(text) = std::fs::read_to_string(&path).ok().filter(|_| is_file) else {
            continue;
        };
        if Digest::of(&text) == *digest {
            write(name, marked(&text, &notice))?;
        }
    }
    // A file of that name that nobody published is somebody's own.
    let is_free = std::fs::symlink_metadata(folder.join(NOTICE)).is_err();
    if is_free || files.contains_key(NOTICE) {
        write(NOTICE, format!("{BEGIN}{notice}\n"))?;
    }
    Ok(marked)
}

/// The text below the notice, in place of an earlier one.
fn above(text: &str, notice: &str) -> String {
    let own = text
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.split_once("\n\n"))
        .map_or(text, |(_, own)| own);
    format!("{BEGIN}{notice}\n\n{own}")
}

fn on_page(page: &str, notice: &str) -> String {
    let [open, close] = TAGS;
    let escaped = notice
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let Some((head, body)) = page.split_once("<body>\n") else {
        return page.to_owned();
    };
    let own = body
        .strip_prefix(open)
        .and_then(|rest| rest.split_once(close))
        .map_or(body, |(_, own)| own);
    format!("{head}<body>\n{open}{escaped}{close}{own}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_notice_takes_the_place_of_the_first() {
        let text = above("figures\n\nmore\n", "one");
        assert_eq!(text, "OUTDATED: one\n\nfigures\n\nmore\n");
        assert_eq!(above(&text, "two"), "OUTDATED: two\n\nfigures\n\nmore\n");
        let page = on_page("<head></head><body>\n<h1>x</h1>", "a < b");
        assert!(page.contains("OUTDATED: a &lt; b</strong></p>\n<h1>x</h1>"));
        let again = on_page(&page, "c");
        assert!(
            again.contains("OUTDATED: c</strong>") && !again.contains("a &lt; b"),
            "{again}"
        );
    }
}
