//! `${NAME}` and `${NAME:-default}` inside texts.

use std::collections::{BTreeMap, BTreeSet};
use tprimat_base::words::part;

use serde_yaml::Value as Yaml;

use crate::words::secret::is_secret;

/// Defaults may hold variables in turn, this deep.
const MAX_DEPTH: usize = 8;

/// Expands `text` from `env`; as in a shell, an empty variable takes the default. `$${` is a
/// literal `${`.
pub(super) fn expand(text: &str, env: &BTreeMap<String, String>) -> Result<String, String> {
    expand_to_depth(text, env, MAX_DEPTH)
}

/// A variable in `text` whose name is that of a secret.
pub(super) fn secret_in(text: &str) -> Option<&str> {
    let starts = text
        .match_indices("${")
        .filter(|(at, _)| !part(text, ..*at).ends_with('$'));
    let names = starts.map(|(at, _)| {
        let after = part(text, at + 2..);
        let end = after
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(after.len());
        part(after, ..end)
    });
    names.into_iter().find(|name| is_secret(name))
}

fn expand_to_depth(
    text: &str,
    env: &BTreeMap<String, String>,
    depth: usize,
) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = part(from, 2..);
            continue;
        }
        expanded.push_str(before);
        let end = closing_brace(from).ok_or("`${` without its `}`")?;
        let inside = part(from, 2..end);
        let (name, default) = inside
            .split_once(":-")
            .map_or((inside, None), |(name, default)| (name, Some(default)));
        if !is_variable_name(name) {
            return Err(format!(
                "`${{{inside}}}` is not `${{NAME}}` or `${{NAME:-default}}`"
            ));
        }
        match (
            env.get(name)
                .filter(|value| default.is_none() || !value.is_empty()),
            default,
        ) {
            (Some(value), _) => expanded.push_str(value),
            (None, Some(_)) if depth == 0 => return Err("defaults are nested too deeply".into()),
            (None, Some(default)) => expanded.push_str(&expand_to_depth(default, env, depth - 1)?),
            (None, None) => return Err(format!("the environment variable {name} is not set")),
        }
        rest = part(from, end + 1..);
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Names of all variables that the texts of a tree may be expanded from.
pub(super) fn variables(tree: &Yaml, names: &mut BTreeSet<String>) {
    match tree {
        Yaml::String(text) => {
            for after in text.split("${").skip(1) {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                names.insert(part(after, ..end).to_owned());
            }
        }
        Yaml::Sequence(items) => items.iter().for_each(|item| variables(item, names)),
        Yaml::Mapping(entries) => entries.values().for_each(|value| variables(value, names)),
        _ => {}
    }
}

/// Position of the `}` that closes the `${` which `text` begins with.
fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 1 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> BTreeMap<String, String> {
        [("HOME", "/home/me"), ("EMPTY", ""), ("N", "8")]
            .map(|(k, v)| (k.into(), v.into()))
            .into()
    }

    #[test]
    fn expands_as_a_shell_does() {
        let cases = [
            ("plain $HOME {x}", "plain $HOME {x}"),
            ("${HOME}/data", "/home/me/data"),
            ("${NONE:-a}${N}", "a8"),
            ("${EMPTY:-full}", "full"),
            ("[${EMPTY}]", "[]"),
            ("${NONE:-${HOME}/x}", "/home/me/x"),
            ("${NONE:-}", ""),
            ("$${HOME}", "${HOME}"),
        ];
        for (text, expanded) in cases {
            assert_eq!(expand(text, &env()).as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn refuses_what_it_cannot_expand() {
        assert_eq!(
            expand("${NONE}", &env()).unwrap_err(),
            "the environment variable NONE is not set"
        );
        assert_eq!(
            expand("a ${HOME", &env()).unwrap_err(),
            "`${` without its `}`"
        );
        assert!(expand("${HO ME}", &env()).is_err());
        assert!(expand("${HOME-x}", &env()).is_err());
        assert!(expand(&"${A:-".repeat(10_000), &env()).is_err());
        let deep = format!("{}x{}", "${A:-".repeat(20), "}".repeat(20));
        assert!(expand(&deep, &env()).is_err());
    }
}
