//! A Rust file as its tokens, without what changes nothing that it computes.

use std::{fmt::Write as _, iter::Peekable};

use proc_macro2::{Delimiter, TokenStream, TokenTree, token_stream::IntoIter};

/// A module that a file declares, `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// Relative to the folder of the file's modules: an inline module is a folder.
    pub path: String,
    /// Only tests have it.
    pub is_test: bool,
}

/// The tokens of a file, one a line, without comments, documentation, tests, trailing commas, and braces around a single
/// expression, which a formatter adds and takes away; and the modules that the file declares.
pub fn normalised(text: &str) -> Result<(String, Vec<Module>), String> {
    let stream: TokenStream = text.parse().map_err(|e| format!("is not Rust: {e}"))?;
    let mut writer = Writer { text: String::with_capacity(text.len()), modules: Vec::new(), path: Vec::new() };
    writer.stream(stream);
    Ok((writer.text, writer.modules))
}

struct Writer {
    text: String,
    modules: Vec<Module>,
    /// Inline modules around the present place.
    path: Vec<String>,
}

impl Writer {
    fn stream(&mut self, stream: TokenStream) {
        let mut tokens = stream.into_iter().peekable();
        let mut before = [const { String::new() }; 2];
        while let Some(token) = tokens.next() {
            if let Some(attribute) = attribute(&token, &mut tokens) {
                match attribute.as_str() {
                    "cfg(test)" => self.skip_item(&mut tokens),
                    doc if doc.starts_with("doc=") || doc.starts_with("doc(") => {}
                    other => self.line(&format!("#[{other}]")),
                }
                continue;
            }
            let is_last = tokens.peek().is_none();
            let shown = match token {
                TokenTree::Group(group) => {
                    let is_followed_by_arm =
                        !is_last && !matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ',');
                    self.group(&group, &before, is_followed_by_arm);
                    String::from("}")
                }
                TokenTree::Punct(comma) if comma.as_char() == ',' && is_last => String::new(),
                other => other.to_string(),
            };
            if before[1] == "mod" && matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ';') {
                self.declare(&shown, false);
            }
            if !shown.is_empty() && shown != "}" {
                self.line(&shown);
            }
            before = [std::mem::take(&mut before[1]), shown];
        }
    }

    fn group(&mut self, group: &proc_macro2::Group, before: &[String; 2], is_followed_by_arm: bool) {
        let is_module = before[0] == "mod" && group.delimiter() == Delimiter::Brace;
        if is_module {
            self.path.push(before[1].clone());
        }
        // `=> { x }` is `=> x,`, and `|y| { x }` is `|y| x`.
        let is_arm = before[0] == "=" && before[1] == ">";
        let is_loose =
            group.delimiter() == Delimiter::Brace && (is_arm || before[1] == "|") && is_expression(group.stream());
        let (open, close) = match group.delimiter() {
            _ if is_loose => ("", ""),
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        self.line(open);
        self.stream(group.stream());
        self.line(if is_arm && is_loose && is_followed_by_arm { "," } else { close });
        if is_module {
            self.path.pop();
        }
    }

    fn line(&mut self, token: &str) {
        if !token.is_empty() {
            let _ = writeln!(self.text, "{token}");
        }
    }

    fn declare(&mut self, name: &str, is_test: bool) {
        let path = self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/");
        self.modules.push(Module { path, is_test });
    }

    /// Passes over what stands behind `#[cfg(test)]`: an item, a field or a statement.
    fn skip_item(&mut self, tokens: &mut Peekable<IntoIter>) {
        let mut before = String::new();
        let mut ends_with_semicolon = false;
        while let Some(token) = tokens.next() {
            if attribute(&token, tokens).is_some() {
                continue;
            }
            match &token {
                TokenTree::Punct(end) if matches!(end.as_char(), ';' | ',') => break,
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !ends_with_semicolon => break,
                _ => {}
            }
            let shown = token.to_string();
            ends_with_semicolon |= matches!(shown.as_str(), "use" | "const" | "static" | "type" | "let");
            if before == "mod" && matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ';') {
                self.declare(&shown, true);
            }
            before = shown;
        }
    }
}

/// The text between the brackets of an attribute, `#[…]` or `#![…]`, without spaces around its signs.
fn attribute(token: &TokenTree, tokens: &mut Peekable<IntoIter>) -> Option<String> {
    let is = |token: Option<&TokenTree>, sign| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == sign);
    if !is(Some(token), '#') {
        return None;
    }
    if is(tokens.peek(), '!') {
        tokens.next();
    }
    match tokens.peek() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => {
            let text = group.stream().to_string();
            tokens.next();
            Some(text.replace([' ', '\n'], ""))
        }
        _ => Some(String::new()),
    }
}

/// Is this what a block of one expression holds: something, and no statement?
fn is_expression(stream: TokenStream) -> bool {
    let mut tokens = stream.into_iter().peekable();
    let is_something = tokens.peek().is_some();
    is_something && tokens.all(|token| !matches!(&token, TokenTree::Punct(p) if p.as_char() == ';'))
}
