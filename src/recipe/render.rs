//! minijinja templates, with quoting by file type.
//!
//! In `*.sh.j2` every interpolation is one shell word (a list: one word an item); in `*.json.j2`
//! and `*.toml.j2` it is a JSON value, in `*.yaml.j2` one that YAML 1.1 readers take for the same
//! value. `| safe` opts out. Undefined names and nulls are errors: a launcher with a hole in it
//! must not run. `fail(reason)` refuses what a template cannot express.

mod watch;

use std::{
    ops::Range,
    sync::{Arc, LazyLock},
};

use minijinja::{
    AutoEscape, Environment, ErrorKind, Output, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Rest},
};

use tprimat_base::{
    digest::Digest,
    error::{Error, Problem, Result, Source},
};
use tprimat_job::Job;

use self::watch::Watched;

/// Instructions of one rendering: nested loops that never end are an error, not a hang.
const FUEL: u64 = 2_000_000;
/// Bytes of one template.
const MAX_TEMPLATE: usize = 256 << 10;
/// Columns that a filter may pad or indent to.
const MAX_WIDTH: usize = 1000;
/// Operators and brackets of one `{{ … }}` or `{% … %}`: the parser takes one level of the stack
/// for each.
const MAX_OPERATORS: usize = 500;

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
        env.set_fuel(Some(FUEL));
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true)
            .build();
        env.set_syntax(syntax.expect("the default delimiters are distinct"));
        env.set_auto_escape_callback(|name| {
            match name.strip_suffix(".j2").and_then(|n| n.rsplit('.').next()) {
                Some("sh") => AutoEscape::Custom("shell".into()),
                Some("json" | "toml") => AutoEscape::Custom("json".into()),
                Some("yaml" | "yml") => AutoEscape::Custom("yaml".into()),
                _ => AutoEscape::None,
            }
        });
        env.add_function(
            "fail",
            |reason: String| -> Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
            },
        );
        env.set_formatter(format);
        bounded(
            &mut env,
            "indent",
            Value::from_function(minijinja::filters::indent),
        );
        bounded(
            &mut env,
            "format",
            Value::from_function(minijinja::filters::format),
        );
        bounded(
            &mut env,
            "replace",
            Value::from_function(minijinja::filters::replace),
        );
        Self {
            env,
            sources: Vec::new(),
        }
    }
}

impl Templates {
    /// Parses a template under a unique name that ends like its file (`native/native.sh.j2`).
    pub fn add(&mut self, name: &str, source: Arc<Source>) -> Result<()> {
        let text = source.text.clone();
        if let Some(problem) = too_much(&source) {
            return Err(Error::invalid(problem));
        }
        self.sources.push((name.to_owned(), source.clone()));
        self.env
            .add_template_owned(name.to_owned(), text)
            .map_err(|e| Error::invalid(problem(&e, Some(&source))))
    }

    /// Renders one template; `context` is what it sees.
    pub fn render(&self, name: &str, context: &Value) -> Result<Rendered> {
        let run = || self.env.get_template(name)?.render(context);
        let watched = Watched::begin(name);
        let text = run();
        drop(watched);
        let text = text.map_err(|e| {
            let cause = innermost(&e);
            let wrong = cause.name().unwrap_or(name);
            let source = self.sources.iter().find(|(name, _)| name == wrong);
            Error::invalid(problem(cause, source.map(|(_, source)| source)))
        })?;
        let file = name.rsplit('/').next().unwrap_or(name);
        let bytes = text.into_bytes();
        Ok(Rendered {
            name: file.trim_end_matches(".j2").to_owned(),
            digest: Digest::of(&bytes),
            bytes,
        })
    }
}

/// Fills in a word of a command, with the limits of a template; why it cannot be done.
pub fn fill(text: &str, context: Value) -> Result<String, String> {
    static PLAIN: LazyLock<Templates> = LazyLock::new(Templates::default);
    if let Some(problem) = too_much(&Source::new("command", text)) {
        return Err(problem.message);
    }
    let _watched = Watched::begin("command");
    let filled = PLAIN.env.render_str(text, context);
    filled.map_err(|error| problem(&error, None).message)
}

/// A filter whose result may be far longer than what it is given: its numbers, those within its
/// texts, and what a replacement makes are bounded before it begins.
fn bounded(env: &mut Environment<'static>, name: &'static str, filter: Value) {
    env.add_filter(
        name,
        move |state: &mut State, value: Value, rest: Rest<Value>, named: Kwargs| {
            let mut arguments: Vec<Value> =
                std::iter::once(value).chain(rest.iter().cloned()).collect();
            let widths: Vec<Value> = named
                .args()
                .filter_map(|name| named.peek(name).ok())
                .collect();
            if let Some(why) = too_wide(name, &arguments, &widths) {
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, why));
            }
            if !widths.is_empty() {
                arguments.push(Value::from(named));
            }
            filter.call(state, &arguments)
        },
    );
}

/// Why a filter's result would be too long.
fn too_wide(name: &str, arguments: &[Value], named: &[Value]) -> Option<String> {
    let text = |at: usize| {
        arguments
            .get(at)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let beyond = |width: f64| {
        (width > MAX_WIDTH as f64)
            .then(|| format!("a width of {width} in `{name}`; at most {MAX_WIDTH} is allowed"))
    };
    match name {
        "replace" => {
            let times = if text(1).is_empty() {
                text(0).len() + 1
            } else {
                text(0).matches(text(1)).count()
            };
            let length = text(0)
                .len()
                .saturating_add(times.saturating_mul(text(2).len()));
            (length > MAX_TEMPLATE).then(|| {
                format!("`replace` makes {length} bytes; at most {MAX_TEMPLATE} are allowed")
            })
        }
        "format" => {
            // In `%*d` the width is an argument.
            let given = arguments[1..]
                .iter()
                .filter(|_| text(0).contains('*'))
                .filter_map(number);
            widths(text(0)).into_iter().chain(given).find_map(beyond)
        }
        _ => arguments[1..]
            .iter()
            .chain(named)
            .filter_map(number)
            .find_map(beyond),
    }
}

/// The widths and precisions in a format text: the numbers between a `%` and the letter that ends
/// it, as in `port-29500-%05.1f`.
fn widths(text: &str) -> Vec<f64> {
    let mut widths = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('%') {
        rest = behind;
        // `%(name)10d`: a name's digits are no width.
        if let Some(name) = rest.strip_prefix('(') {
            rest = name.split_once(')').map_or("", |(_, behind)| behind);
        }
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && !" #+-.*".contains(c))
            .unwrap_or(rest.len());
        let (numbers, behind) = rest.split_at(end);
        widths.extend(
            numbers
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|digits| digits.parse::<f64>().ok()),
        );
        // `%%` is a sign of the text.
        rest = behind
            .strip_prefix('%')
            .filter(|_| numbers.is_empty())
            .unwrap_or(behind);
    }
    widths
}

fn number(value: &Value) -> Option<f64> {
    f64::try_from(value.clone()).ok().map(f64::abs)
}

/// A template that is longer, or has an expression that is longer, than the parser should be given.
fn too_much(source: &Arc<Source>) -> Option<Problem> {
    let text = &source.text;
    if text.len() > MAX_TEMPLATE {
        let message = format!(
            "the template has {} bytes; at most {MAX_TEMPLATE} are read",
            text.len()
        );
        return Some(Problem::new(message).at(source, 0..0, ""));
    }
    let (mut begun, mut operators) = (None, 0);
    for (at, pair) in text.as_bytes().windows(2).enumerate() {
        match pair {
            b"{{" | b"{%" if begun.is_none() => (begun, operators) = (Some(at), 0),
            b"}}" | b"%}" => begun = None,
            _ if begun.is_some() => operators += usize::from(b"-+*/%~|([{<>=!.".contains(&pair[0])),
            _ => {}
        }
        if let Some(begun) = begun.filter(|_| operators > MAX_OPERATORS) {
            let message =
                format!("an expression of the template has more than {MAX_OPERATORS} operators");
            let help = "split it with `{% set … %}`";
            return Some(
                Problem::new(message)
                    .at(source, begun..begun + 2, "begins here")
                    .help(help),
            );
        }
    }
    None
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
            let text = match kind.as_ref() {
                "shell" => shell_words(value)?,
                "yaml" => yaml(&as_json(value)?),
                _ => as_json(value)?.to_string(),
            };
            out.write_str(&text).map_err(minijinja::Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn shell_words(value: &Value) -> Result<String, minijinja::Error> {
    let word = |v: &Value| -> Result<String, minijinja::Error> {
        let text = v.to_string();
        shlex::try_quote(&text)
            .map(|w| w.into_owned())
            .map_err(|_| {
                minijinja::Error::new(
                    ErrorKind::InvalidOperation,
                    "a NUL byte cannot be part of a shell word",
                )
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

fn as_json(value: &Value) -> Result<serde_json::Value, minijinja::Error> {
    serde_json::to_value(value).map_err(|e| {
        minijinja::Error::new(ErrorKind::BadSerialization, "not a JSON value").with_source(e)
    })
}

/// JSON that a YAML 1.1 reader such as PyYAML takes for the same value: it wants a point and a sign
/// in `1.0e-8`, and folds or refuses some characters that JSON leaves as they are.
fn yaml(value: &serde_json::Value) -> String {
    use serde_json::Value::{Array, Number, Object, String};
    let string = |s: &str| {
        let mut text = serde_json::Value::from(s).to_string();
        for c in [
            '\u{7f}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{fffe}', '\u{ffff}',
        ]
        .into_iter()
        .chain('\u{80}'..='\u{9f}')
        {
            if text.contains(c) {
                text = text.replace(c, &format!("\\u{:04x}", c as u32));
            }
        }
        text
    };
    match value {
        Number(n) => match n.to_string().split_once('e') {
            None => n.to_string(),
            Some((digits, exponent)) => {
                let point = if digits.contains('.') { "" } else { ".0" };
                let sign = if exponent.starts_with(['-', '+']) {
                    ""
                } else {
                    "+"
                };
                format!("{digits}{point}e{sign}{exponent}")
            }
        },
        String(s) => string(s),
        Array(items) => format!(
            "[{}]",
            items.iter().map(yaml).collect::<Vec<_>>().join(", ")
        ),
        Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{}: {}", string(name), yaml(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// The error in the template that another one includes, rather than that including it failed.
fn innermost(error: &minijinja::Error) -> &minijinja::Error {
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    cause.map_or(error, innermost)
}

fn problem(error: &minijinja::Error, source: Option<&Arc<Source>>) -> Problem {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |d| format!("{}: {d}", error.kind()),
    );
    let problem = Problem::new(format!("template: {what}"));
    let problem = match source {
        Some(source) => {
            let span = error
                .range()
                .or_else(|| error.line().map(|line| line_span(&source.text, line)));
            problem.at(source, span.unwrap_or(0..0), "here")
        }
        None => problem,
    };
    match error.kind() {
        ErrorKind::UndefinedError => problem.help(
            "templates see `job`; `tprimat print schema job` lists its fields, `frameworks.<id>.*` is `job.framework.*`",
        ),
        _ => problem,
    }
}

fn line_span(text: &str, line: usize) -> Range<usize> {
    let start = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    let line = text.get(start..).and_then(|rest| rest.lines().next());
    start..start + line.map_or(0, str::len)
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
        let error = render(
            "x.sh.j2",
            "echo a\necho {{ job.seq }}\n",
            &context! { job => context! {} },
        )
        .unwrap_err();
        let Error::Invalid(problems) = error else {
            panic!("{error}")
        };
        assert_eq!(problems[0].position(), Some(("x.sh.j2".into(), 2, 9)));
    }

    #[test]
    fn an_included_template_quotes_by_its_own_type_and_errors_name_its_line() {
        let included = "{# a comment -#}\n{% if job.n > 1 %}\nrun {{ job.name }}\n{%- endif %}\n";
        let rendered = |job: Value| {
            let mut templates = Templates::default();
            templates.add(
                "lib/run.sh.j2",
                Source::new("recipes/lib/run.sh.j2", included),
            )?;
            let text = "set -e\n{% include \"lib/run.sh.j2\" %} \"$x\"\n";
            templates.add("x/x.sh.j2", Source::new("templates/x.sh.j2", text))?;
            Ok(templates.render("x/x.sh.j2", &context! { job })?.bytes)
        };
        let bytes = rendered(context! { n => 2, name => "a b" }).unwrap();
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            "set -e\nrun 'a b' \"$x\"\n"
        );
        let Err(Error::Invalid(problems)) = rendered(context! { n => 2 }) else {
            panic!("a name is missing")
        };
        let place = problems[0].position();
        assert_eq!(place, Some(("recipes/lib/run.sh.j2".into(), 3, 8)));
    }

    #[test]
    fn what_would_hang_or_overflow_is_an_error() {
        let endless =
            "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
        let deep = [
            format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
            format!("{{{{ 1{} }}}}", "+1".repeat(200_000)),
        ];
        let long = "x".repeat(MAX_TEMPLATE + 1);
        for text in [endless, &deep[0], &deep[1], &long] {
            let Err(Error::Invalid(problems)) = render("x.sh.j2", text, &context! {}) else {
                panic!("it must end")
            };
            assert_eq!(problems[0].position().unwrap().1, 1, "{problems:?}");
        }
    }

    #[test]
    fn widths_and_replacements_are_bounded_with_an_error_that_says_the_bound() {
        let many = "x".repeat(1000);
        for text in [
            "{{ 'a'|indent(4000000000, true) }}",
            "{{ 'a'|indent(width=4000000000, first=true) }}",
            "{{ 'a'|indent(wide, true) }}",
            "{{ '%1000000000d'|format(1) }}",
            "{{ '%*d'|format(wide, 1) }}",
            "{{ '%.999999999f'|format(1.5) }}",
            "{{ '%% %1000000000d'|format(1) }}",
            "{{ '29500-%s-% -01000000000d'|format('a', 1) }}",
            "{{ '%(n)1000000000d'|format(n=1) }}",
            "{{ many|replace('x', many) }}",
        ] {
            let context = context! { wide => 2_000_000_000_u64, many => many.clone() };
            let Err(Error::Invalid(problems)) = render("x.sh.j2", text, &context) else {
                panic!("{text}")
            };
            let message = &problems[0].message;
            assert!(
                message.contains("at most 1000 is allowed")
                    || message.contains("at most 262144 are"),
                "{message}"
            );
        }
        let usual = "{{ 'a\nb'|indent(2) }} {{ '%05.1f'|format(2.5) }} {{ 'a-b'|replace('-', '+') }} {{ '%d'|format(wide) }}";
        let made = render("x.txt.j2", usual, &context! { wide => 2_000_000_000_u64 }).unwrap();
        assert_eq!(made, "a\n  b 002.5 a+b 2000000000");
        // A number that the text merely has is no width.
        let literal = "{{ '29500-%d %s-100000 %%2000'|format(7, 'x') }} {{ '2000: %(a2000)5s'|format(a2000='y') }}";
        assert_eq!(
            render("x.txt.j2", literal, &context! {}).unwrap(),
            "29500-7 x-100000 %2000 2000:     y"
        );
    }

    #[test]
    fn a_null_is_an_error_in_a_script() {
        assert!(
            render(
                "x.sh.j2",
                "echo {{ v }}",
                &context! { v => Value::from(()) }
            )
            .is_err()
        );
    }

    #[test]
    fn json_and_yaml_get_encoded_values() {
        let text = render(
            "c.yaml.j2",
            "a: {{ s }}\nb: {{ l }}\n",
            &context! { s => "x: \"y\"\n", l => vec![1, 2] },
        )
        .unwrap();
        assert_eq!(text, "a: \"x: \\\"y\\\"\\n\"\nb: [1, 2]\n");
        let numbers = context! { v => vec![1e-8, 3e-4, 2.5e20, 1.0] };
        assert_eq!(
            render("c.yaml.j2", "{{ v }}", &numbers).unwrap(),
            "[1.0e-8, 0.0003, 2.5e+20, 1.0]"
        );
        assert_eq!(
            render("c.json.j2", "{{ v }}", &numbers).unwrap(),
            "[1e-8,0.0003,2.5e+20,1.0]"
        );
    }

    #[test]
    fn a_template_can_refuse_with_its_reason() {
        let error = render(
            "x.sh.j2",
            "a\n{{ fail('no ' ~ what) }}\n",
            &context! { what => "way" },
        )
        .unwrap_err();
        let Error::Invalid(problems) = error else {
            panic!("{error}")
        };
        assert!(problems[0].message.contains("no way"), "{problems:?}");
        assert_eq!(problems[0].position().unwrap().1, 2);
    }

    proptest! {
        #[test]
        fn any_string_reaches_a_shell_as_one_word(s in "[^\0]{0,40}") {
            let text = render("x.sh.j2", "{{ s }} {{ l }}", &context! { s => s.clone(), l => vec![s.clone(), "b c".to_owned()] }).unwrap();
            prop_assert_eq!(shlex::split(&text).unwrap(), vec![s.clone(), s, "b c".to_owned()]);
        }
    }
}
