//! A comparison as one page that needs nothing else: no network, no font, no file beside it.
//!
//! `page` makes the tables and `cell` what is told of one cell; `page.html` and `cell.html` put
//! them in place, and every word that comes from outside is escaped there. `style.css` and
//! `script.js` are put into the page as they are.

mod cell;
mod page;
#[cfg(test)]
mod tests;

use minijinja::{
    Environment, ErrorKind, Output, State, UndefinedBehavior, Value, context, syntax::SyntaxConfig,
    value::Serde,
};
use tprimat_base::error::{Error, Result};
use tprimat_base::words::part;
use tprimat_numbers::figures::Comparison;

use super::{
    LeftOut,
    format::{bytes, number, percent, seconds},
};

/// Cells with figures that a page shows, cells without, and notes: as many as a browser opens at
/// once. Each cell takes some 15 KB, so that even a sweep of ten thousand makes a page below 30
/// MiB.
const MOST: usize = 500;

/// A picture that the page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePicture {
    /// Its file without extension: `compare`.
    pub name: String,
    pub title: String,
    pub svg: String,
}

impl PagePicture {
    /// What was published as this file.
    #[must_use]
    pub fn new(name: &str, svg: String) -> Self {
        Self {
            name: name.to_owned(),
            title: super::title_of(name).unwrap_or(name).to_owned(),
            svg,
        }
    }
}

/// What a page tells besides the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Name of the matrix, or of the cells.
    pub matrix: String,
    /// Pictures that would show nothing.
    pub left_out: Vec<LeftOut>,
}

/// The whole page. The same comparison gives the same bytes everywhere.
///
/// # Errors
/// Only where a template asks for what the comparison does not have.
pub fn html(comparison: &Comparison, pictures: &[PagePicture], meta: &Meta) -> Result<String> {
    let pictures: Vec<Value> = pictures
        .iter()
        .map(|p| {
            // Behind a prologue, if there is one: inside a page there may be none.
            let svg = p.svg.find("<svg").map_or("", |at| part(&p.svg, at..));
            let svg = svg.trim().replace(is_hidden, "\u{fffd}");
            context! { name => p.name.clone(), title => p.title.clone(), svg => Value::from_safe_string(svg) }
        })
        .collect();
    let (page, cells) = (page::Page::of(comparison), cell::all(comparison));
    let [page, cells] = [Value::from(Serde(&page)), Value::from(Serde(&cells))];
    let context = context! {
        title => meta.matrix.clone(),
        page,
        cells,
        pictures,
        left_out => meta.left_out.iter().map(|l| context! { title => l.title, reason => l.reason.clone() }).collect::<Vec<_>>(),
        style => Value::from_safe_string(include_str!("html/style.css").to_owned()),
        script => Value::from_safe_string(include_str!("html/script.js").to_owned()),
    };
    let render = || environment()?.get_template("page.html")?.render(context);
    render().map_err(|e| {
        // The innermost says what it was; those around it, in which template.
        let sources = std::iter::successors(std::error::Error::source(&e), |e| e.source());
        let why: String = sources.map(|source| format!(": {source}")).collect();
        Error::failed(format!("cannot make the page: {e}{why}"))
    })
}

fn environment() -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    // A field that is not there may be asked for, but never printed.
    env.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    env.set_syntax(syntax.expect("the default delimiters are distinct"));
    env.set_formatter(format);
    env.add_filter("number", number);
    env.add_filter("seconds", seconds);
    env.add_filter("percent", percent);
    env.add_filter("bytes", bytes);
    env.add_filter("breaks", breaks);
    env.add_filter("loss", |loss: f64| format!("{loss:.4}"));
    env.add_filter("utc", utc);
    env.add_filter("plain", |word: &str| word.replace('_', " "));
    env.add_template("page.html", include_str!("html/page.html"))?;
    env.add_template("cell.html", include_str!("html/cell.html"))?;
    Ok(env)
}

/// Whatever is not declared to be markup is escaped; nothing is printed for what is not known.
fn format(
    out: &mut Output,
    _state: &mut State,
    value: &Value,
) -> std::result::Result<(), minijinja::Error> {
    if value.is_undefined() || value.is_none() {
        return Err(minijinja::Error::new(
            ErrorKind::UndefinedError,
            "a value that is not known cannot be printed",
        ));
    }
    match value.as_str() {
        Some(text) if value.is_safe() => out.write_str(text)?,
        Some(text) => out.write_str(&escaped(text))?,
        None => out.write_str(&escaped(&value.to_string()))?,
    }
    Ok(())
}

/// Text as a page may have it, between tags or in quotes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for ch in text.chars() {
        match ch {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            ch => out.push(if is_hidden(ch) { '\u{fffd}' } else { ch }),
        }
    }
    out
}

/// A cell's name that may be broken between its parts.
fn breaks(name: &str) -> Value {
    let parts: Vec<String> = name.split_inclusive(['/', '@', ',']).map(escaped).collect();
    Value::from_safe_string(parts.join("<wbr>"))
}

/// Characters that are not to be seen, among them those that turn the direction of writing, and so
/// could make a name look like another; a page shows U+FFFD instead.
fn is_hidden(ch: char) -> bool {
    let is_format = matches!(ch, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    is_format || ch.is_control() && ch != '\n' && ch != '\t'
}

/// `2026-03-01 12:30 UTC`; nothing where the number is no time.
fn utc(seconds: f64) -> String {
    if !seconds.is_finite() {
        return String::new();
    }
    let time = jiff::Timestamp::from_second(seconds as i64);
    time.map(|t| t.strftime("%Y-%m-%d %H:%M UTC").to_string())
        .unwrap_or_default()
}
