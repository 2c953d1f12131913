//! minijinja templates, with quoting by file type.
//!
//! In `*.sh.j2` every interpolation is one shell word (a list: one word an item); in `*.json.j2`,
//! `*.yaml.j2` and `*.toml.j2` it is a JSON value. `| safe` opts out. Undefined names and nulls are errors: a launcher
//! with a hole in it must not run.

use std::{ops::Range, sync::Arc};

use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, UndefinedBehavior, Value, syntax::SyntaxConfig};

use crate::{
    digest::Digest,
    error::{Error, Problem, Result, Source},
    plan::Job,
};

/// One launch file: its name in the run folder and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub name: String,
    pub bytes: Vec<u8>,
    pub digest: Digest,
}

/// What a template sees.
#[must_use]
pub fn context(job: &Job) -> Value {
    let job = Value::from(minijinja::value::Serde(job));
    minijinja::context! { job }
}

/// All templates, parsed once.
pub struct Templates {
    env: Environment<'static>,
    sources: Vec<(String, Arc<Source>)>,
}

impl Default for Templates {
    fn default() -> Self {
        let mut env = Environment::new();
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
        env.set_syntax(syntax.expect("the default delimiters are distinct"));
        env.set_auto_escape_callback(|name| match name.strip_suffix(".j2").and_then(|n| n.rsplit('.').next()) {
            Some("sh") => AutoEscape::Custom("shell".into()),
            Some("json" | "yaml" | "yml" | "toml") => AutoEscape::Custom("json".into()),
            _ => AutoEscape::None,
        });
        env.set_formatter(format);
        Self { env, sources: Vec::new() }
    }
}

impl Templates {
    /// Parses a template under a unique name that ends like its file (`native/native.sh.j2`).
    pub fn add(&mut self, name: &str, source: Arc<Source>) -> Result<()> {
        let text = source.text.clone();
        self.sources.push((name.to_owned(), source.clone()));
        self.env.add_template_owned(name.to_owned(), text).map_err(|e| Error::invalid(problem(&e, Some(&source))))
    }

    /// Renders one template; `context` is what it sees.
    pub fn render(&self, name: &str, context: &Value) -> Result<Rendered> {
        let run = || self.env.get_template(name)?.render(context);
        let text = run().map_err(|e| {
            let source = self.sources.iter().find(|(n, _)| n == name).map(|(_, s)| s);
            Error::invalid(problem(&e, source))
        })?;
        let file = name.rsplit('/').next().unwrap_or(name);
        let bytes = text.into_bytes();
        Ok(Rendered { name: file.trim_end_matches(".j2").to_owned(), digest: Digest::of(&bytes), bytes })
    }
}

fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), minijinja::Error> {
    if value.is_undefined() {
        return Err(minijinja::Error::from(ErrorKind::UndefinedError));
    }
    match state.auto_escape() {
        AutoEscape::Custom(kind) if !value.is_safe() => {
            if value.is_none() {
                return Err(minijinja::Error::new(
                    ErrorKind::InvalidOperation,
                    "the value is null; give it with `| default(…)` or guard it with `{% if %}`",
                ));
            }
            let text = if *kind == *"shell" { shell_words(value)? } else { json(value)? };
            out.write_str(&text).map_err(minijinja::Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn shell_words(value: &Value) -> Result<String, minijinja::Error> {
    let word = |v: &Value| -> Result<String, minijinja::Error> {
        let text = v.to_string();
        shlex::try_quote(&text).map(|w| w.into_owned()).map_err(|_| {
            minijinja::Error::new(ErrorKind::InvalidOperation, "a NUL byte cannot be part of a shell word")
        })
    };
    match value.kind() {
        minijinja::value::ValueKind::Seq | minijinja::value::ValueKind::Iterable => {
            let words: Result<Vec<_>, _> = value.try_iter()?.map(|v| word(&v)).collect();
            Ok(words?.join(" "))
        }
        minijinja::value::ValueKind::Map => Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            "a table is not a shell word; name one of its fields",
        )),
        _ => word(value),
    }
}

fn json(value: &Value) -> Result<String, minijinja::Error> {
    serde_json::to_string(value)
        .map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, "not a JSON value").with_source(e))
}

fn problem(error: &minijinja::Error, source: Option<&Arc<Source>>) -> Problem {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    let problem = Problem::new(format!("template: {what}"));
    let problem = match source {
        Some(source) => {
            let span = error.range().or_else(|| error.line().map(|line| line_span(&source.text, line)));
            problem.at(source, span.unwrap_or(0..0), "here")
        }
        None => problem,
    };
    match error.kind() {
        ErrorKind::UndefinedError => problem.help(
            "templates see `job`; `tprimat schema job` lists its fields, `frameworks.<id>.*` is `job.framework.*`",
        ),
        _ => problem,
    }
}

fn line_span(text: &str, line: usize) -> Range<usize> {
    let start = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let length = text[start..].find('\n').unwrap_or(text.len() - start);
    start..start + length
}

#[cfg(test)]
mod tests {
    use minijinja::context;
    use proptest::prelude::*;

    use super::*;

    fn render(name: &str, text: &str, context: &Value) -> Result<String> {
        let mut templates = Templates::default();
        templates.add(name, Source::new(name, text))?;
        Ok(String::from_utf8(templates.render(name, context)?.bytes).unwrap())
    }

    #[test]
    fn an_undefined_name_is_an_error_at_its_line() {
        let error = render("x.sh.j2", "echo a\necho {{ job.seq }}\n", &context! { job => context! {} }).unwrap_err();
        let Error::Invalid(problems) = error else { panic!("{error}") };
        assert_eq!(problems[0].position(), Some(("x.sh.j2".into(), 2, 9)));
    }

    #[test]
    fn a_null_is_an_error_in_a_script() {
        assert!(render("x.sh.j2", "echo {{ v }}", &context! { v => Value::from(()) }).is_err());
    }

    #[test]
    fn json_and_yaml_get_encoded_values() {
        let text =
            render("c.yaml.j2", "a: {{ s }}\nb: {{ l }}\n", &context! { s => "x: \"y\"\n", l => vec![1, 2] }).unwrap();
        assert_eq!(text, "a: \"x: \\\"y\\\"\\n\"\nb: [1,2]\n");
    }

    proptest! {
        #[test]
        fn any_string_reaches_a_shell_as_one_word(s in "[^\0]{0,40}") {
            let text = render("x.sh.j2", "{{ s }} {{ l }}", &context! { s => s.clone(), l => vec![s.clone(), "b c".to_owned()] }).unwrap();
            prop_assert_eq!(shlex::split(&text).unwrap(), vec![s.clone(), s, "b c".to_owned()]);
        }
    }
}
