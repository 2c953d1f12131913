//! A Rust file as its tokens, without what changes nothing that it computes.

use std::{fmt::Write as _, iter::Peekable};

use proc_macro2::{Delimiter, TokenStream, TokenTree, token_stream::IntoIter};
use quote::ToTokens as _;

use crate::without_tests;

/// A module that a file declares, `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// Relative to the folder of the file's modules: an inline module is a folder.
    pub path: String,
    /// Only tests have it.
    pub is_test: bool,
}

/// The tokens of a file, one a line, without comments, documentation, tests, trailing commas, and
/// braces around a single expression, which a formatter adds and takes away; and the modules that
/// the file declares.
pub fn normalised(text: &str) -> Result<(String, Vec<Module>), String> {
    let mut file = syn::parse_file(text).map_err(|e| format!("is not Rust: {e}"))?;
    let of_tests = without_tests::remove(&mut file)
        .into_iter()
        .map(|path| Module {
            path,
            is_test: true,
        })
        .collect();
    let mut writer = Writer {
        text: String::with_capacity(text.len()),
        modules: of_tests,
        path: Vec::new(),
    };
    writer.stream(file.into_token_stream());
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
        let mut begins = String::new();
        while let Some(token) = tokens.next() {
            if let Some(attribute) = attribute(&token, &mut tokens) {
                match attribute.as_str() {
                    doc if doc.starts_with("doc=") || doc.starts_with("doc(") => {}
                    other => self.line(&format!("#[{other}]")),
                }
                continue;
            }
            let is_last = tokens.peek().is_none();
            let shown = match token {
                TokenTree::Group(group) => {
                    let is_followed_by_arm = !is_last
                        && !matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ',');
                    self.group(&group, &before, is_followed_by_arm);
                    String::from(if group.delimiter() == Delimiter::Brace {
                        "}"
                    } else {
                        ")"
                    })
                }
                TokenTree::Punct(comma) if comma.as_char() == ',' && is_last => String::new(),
                TokenTree::Punct(end) if end.as_char() == ';' && is_last && leaves(&begins) => {
                    String::new()
                }
                other => other.to_string(),
            };
            if before[1] == "mod"
                && matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ';')
            {
                self.declare(&shown);
            }
            if !matches!(shown.as_str(), "}" | ")") {
                self.line(&shown);
            }
            if begins.is_empty() {
                begins.clone_from(&shown);
            }
            if matches!(shown.as_str(), ";" | "}") {
                begins.clear();
            }
            before = [std::mem::take(&mut before[1]), shown];
        }
    }

    fn group(
        &mut self,
        group: &proc_macro2::Group,
        before: &[String; 2],
        is_followed_by_arm: bool,
    ) {
        let is_module = before[0] == "mod" && group.delimiter() == Delimiter::Brace;
        if is_module {
            self.path.push(before[1].clone());
        }
        // `=> { x }` is `=> x,`, and `|y| { x }` is `|y| x`.
        let is_arm = before[0] == "=" && before[1] == ">";
        let is_loose = group.delimiter() == Delimiter::Brace
            && (is_arm || before[1] == "|")
            && is_expression(group.stream());
        let (open, close) = match group.delimiter() {
            _ if is_loose => ("", ""),
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        self.line(open);
        self.stream(group.stream());
        self.line(if is_arm && is_loose && is_followed_by_arm {
            ","
        } else {
            close
        });
        if is_module {
            self.path.pop();
        }
    }

    fn line(&mut self, token: &str) {
        if !token.is_empty() {
            let _ = writeln!(self.text, "{token}");
        }
    }

    fn declare(&mut self, name: &str) {
        let path = self
            .path
            .iter()
            .map(String::as_str)
            .chain([name])
            .collect::<Vec<_>>()
            .join("/");
        self.modules.push(Module {
            path,
            is_test: false,
        });
    }
}

/// The text between the brackets of an attribute, `#[…]` or `#![…]`, without spaces around its
/// signs.
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
            // Without spaces and trailing commas, which a formatter adds.
            Some(text.replace([' ', '\n'], "").replace(",)", ")"))
        }
        _ => Some(String::new()),
    }
}

/// Is this what a block of one expression holds: something, and no statement but one that leaves?
fn is_expression(stream: TokenStream) -> bool {
    let mut tokens: Vec<TokenTree> = stream.into_iter().collect();
    let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ';');
    if tokens.last().is_some_and(is_end) && leaves(&tokens[0].to_string()) {
        tokens.pop();
    }
    !tokens.is_empty() && !tokens.iter().any(is_end)
}

/// Does a statement that begins with this word leave its block, whether or not a semicolon ends it?
fn leaves(word: &str) -> bool {
    matches!(word, "return" | "continue" | "break")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str) -> String {
        normalised(source).unwrap().0
    }

    const CODE: &str = "
        struct Clock { now: f64 }
        fn rate(tokens: f64, seconds: f64) -> f64 {
            match seconds {
                s if s > 0.0 => tokens / s,
                _ => 0.0,
            }
        }
        fn all(x: &[f64]) -> Vec<f64> { x.iter().map(|t| rate(*t, 1.0)).collect() }
    ";

    #[test]
    fn comments_tests_and_formatting_are_not_in_it() {
        let edits = [
            "//! What this is for.
            /// Tokens of a second.
            #[doc = \"more\"]
            struct Clock { now: f64, }
            fn rate(tokens: f64, seconds: f64) -> f64 { // per device
                match seconds { s if s > 0.0 => { tokens / s } _ => 0.0 }
            }
            fn all(x: &[f64]) -> Vec<f64> {
                x.iter()
                    .map(|t| {
                        rate(
                            *t,
                            1.0,
                        )
                    })
                    .collect()
            }",
            "#[cfg(test)] use std::fmt; #[cfg(test)] const A: u8 = { 1 };
            struct Clock { now: f64, #[cfg(test)] set_to: Option<(f64, f64)> }
            fn rate(tokens: f64, seconds: f64) -> f64 {
                #[cfg(test)] let x: Vec<(u8, u8)> = Vec::new();
                #[cfg(test)] x.push((1, 2));
                match seconds { #[cfg(test)] 1.0 => 2.0, s if s > 0.0 => tokens / s, _ => 0.0 }
            }
            #[cfg(test)] #[expect(dead_code)] fn helper() { let x = 1; }
            fn all(x: &[f64]) -> Vec<f64> { x.iter().map(|t| rate(*t, 1.0)).collect() }
            #[cfg(test)] mod tests { use super::*; #[test] fn t() { assert!(true); } }",
        ];
        for edit in edits {
            assert_eq!(text(edit), text(CODE), "{edit}");
        }
    }

    #[test]
    fn signs_that_only_a_formatter_wants_are_not_in_it() {
        let narrow = "#[derive(Clone, Debug,)] struct A; fn f() { let Some(x) = y else { return Ok(()); }; match x { 1 => { return 2; } _ => 3 } }";
        let wide = "#[derive(Clone, Debug)] struct A; fn f() { let Some(x) = y else { return Ok(()) }; match x { 1 => return 2, _ => 3, } }";
        assert_eq!(text(narrow), text(wide));
    }

    #[test]
    fn every_change_of_what_is_computed_is_in_it() {
        for (old, new) in [
            ("s > 0.0", "s >= 0.0"),
            ("tokens / s", "tokens * s"),
            ("fn rate", "pub fn rate"),
            ("0.0,\n            }", "0.5,\n            }"),
            ("|t| rate(*t, 1.0)", "|t| { let t = *t; rate(t, 1.0) }"),
            ("        fn all", "        #[inline] fn all"),
        ] {
            assert!(CODE.contains(old), "{old}");
            assert_ne!(text(&CODE.replace(old, new)), text(CODE), "{old} → {new}");
        }
        assert_ne!(text("fn f() { g(); }"), text("fn f() { g() }"));
        assert_ne!(
            text("fn g() { f(\"a b\") }"),
            text("fn g() { f(\"a  b\") }"),
            "what a text holds is no formatting"
        );
    }

    /// A test's item ends where its own body or semicolon does, whatever words and signs it has.
    #[test]
    fn nothing_but_the_tests_own_item_is_left_out() {
        let of_tests = [
            "const fn helper() -> u8 { 1 }",
            "fn helper() -> &'static str { \"\" }",
            "fn helper() -> u8 { const A: u8 = 1; static B: u8 = A; B }",
            "pub(crate) fn helper() -> Result<Vec<u8>, Error> { Ok(Vec::new()) }",
            "fn helper<'a, T: Into<u8>, const N: usize>(x: &'a [T; N]) -> MutexGuard<'a, ()> where T: Copy, { panic!() }",
            "type Pair = HashMap<u8, u8>;",
            "const TABLE: [u8; 2] = { [1, 2] };",
            "static A: HashMap<u8, u8> = HashMap::new();",
            "impl<A, B> Convert<A, B> for Pair<A, B> { fn f() -> Result<A, B> { g() } }",
            "struct Pair(u8, u8);",
            "macro_rules! check { ($a:expr, $b:expr) => { assert_eq!($a, $b) }; }",
            "thread_local! { static A: u8 = 1 }",
        ];
        let place = |item: &str, in_impl: &str| {
            format!("{item} fn real(x: u8) -> u8 {{ x + 1 }} impl A {{ {in_impl} fn f() {{}} }}")
        };
        let expected = text(&place("", ""));
        for item in of_tests {
            assert_eq!(
                text(&place(&format!("#[cfg(test)] {item}"), "")),
                expected,
                "{item}"
            );
            let is_associated = item.contains("fn helper") || item.starts_with("const ");
            if is_associated {
                assert_eq!(
                    text(&place("", &format!("#[cfg(test)] {item}"))),
                    expected,
                    "{item}"
                );
            }
            let real = place(&format!("#[cfg(test)] {item}"), "").replace("x + 1", "x + 2");
            assert_ne!(text(&real), expected, "{item}");
        }
        // Where an attribute is for a part of an expression, the part stays.
        assert_ne!(
            text("fn f() { g([#[cfg(test)] 1, 2]) }"),
            text("fn f() { g([#[cfg(test)] 3, 2]) }")
        );
    }

    #[test]
    fn modules_are_found_where_they_are_declared() {
        let source = "mod a; #[cfg(test)] mod b; pub mod c { mod d; #[cfg(test)] mod e; fn f() {} } #[cfg(test)] mod g { mod h; }";
        let module = |path: &str, is_test| Module {
            path: path.into(),
            is_test,
        };
        let found = [
            module("b", true),
            module("c/e", true),
            module("a", false),
            module("c/d", false),
        ];
        assert_eq!(normalised(source).unwrap().1, found);
        assert!(normalised("fn f( {").is_err());
    }
}
