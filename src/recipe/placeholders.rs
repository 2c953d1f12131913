//! Settings of the job in the words of a command: `--seq {{ seq_length }}`.
//!
//! A setting that a command names is handed over, and anybody can see it: with another value the
//! command is another one.

use std::{collections::BTreeMap, sync::LazyLock};

use minijinja::Environment;
use serde_json::Value;

use super::COMMAND;
use crate::{config::strings, error::did_you_mean, job::Job};

const BEGIN: &str = "{{";
const END: &str = "}}";
/// The name of the cell's model, as config.yaml calls it.
const MODEL: &str = "model";
/// All of the job, by its fields' paths.
const JOB: &str = "job";

/// Why a command cannot be filled in.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfilled {
    pub message: String,
    pub help: Option<String>,
}

/// A command of the user's own, its words or one text for a shell, with the job's settings in it.
pub fn filled(command: &Value, job: &Job, model: &str) -> Result<Value, Unfilled> {
    let texts = strings(command);
    if let Some(wrong) = texts.iter().find_map(|text| misspelt(text)) {
        return Err(wrong);
    }
    if !texts.iter().any(|text| text.contains(BEGIN)) {
        return Ok(command.clone());
    }
    let mut known = short_names(job);
    // Options below `frameworks.<id>`, where no setting of the job has their name.
    for (name, value) in job.framework.iter().filter(|(name, _)| *name != COMMAND) {
        known.entry(name.clone()).or_insert_with(|| value.clone());
    }
    known.insert(MODEL.to_owned(), model.into());
    known.insert(JOB.to_owned(), as_json(job));
    let word = |word: &Value| match word {
        Value::String(word) => Ok(Value::from(fill(word, &known, false)?)),
        other => Ok(other.clone()),
    };
    match command {
        Value::Array(words) => words.iter().map(word).collect(),
        Value::String(text) => Ok(fill(text, &known, true)?.into()),
        other => Ok(other.clone()),
    }
}

fn as_json(job: &Job) -> Value {
    serde_json::to_value(job).expect("a job is plain data")
}

/// A text in which no `{{ … }}` has anything that a shell would take apart, and the same back.
pub struct Hidden {
    pub text: String,
    found: Vec<String>,
}

impl Hidden {
    #[must_use]
    pub fn of(text: &str) -> Self {
        let (mut hidden, mut found, mut rest) = (String::new(), Vec::new(), text);
        while let Some((before, behind)) = rest.split_once(BEGIN) {
            let Some((inside, after)) = behind.split_once(END) else {
                break;
            };
            hidden.push_str(before);
            hidden.push_str(&stand_in(found.len()));
            found.push(format!("{BEGIN}{inside}{END}"));
            rest = after;
        }
        hidden.push_str(rest);
        Self {
            text: hidden,
            found,
        }
    }

    #[must_use]
    pub fn shown(&self, word: &str) -> String {
        let found = self.found.iter().enumerate();
        found.fold(word.to_owned(), |word, (at, text)| {
            word.replace(&stand_in(at), text)
        })
    }
}

/// A word that no command has: it is made of characters for private use.
fn stand_in(at: usize) -> String {
    format!("\u{e000}{at}\u{e001}")
}

/// Single values of a job by the last part of their path, where no other has the same: `seq_length`
/// is `job.data.seq_length`.
fn short_names(job: &Job) -> BTreeMap<String, Value> {
    let (mut found, mut twice) = (BTreeMap::new(), Vec::new());
    collect(&as_json(job), &mut found, &mut twice);
    found.retain(|name, _| !twice.contains(name));
    found
}

fn collect(table: &Value, found: &mut BTreeMap<String, Value>, twice: &mut Vec<String>) {
    for (key, value) in table.as_object().into_iter().flatten() {
        match value {
            // What a recipe's options are called is nobody's to know.
            Value::Object(_) if key == "framework" => {}
            Value::Object(_) => collect(value, found, twice),
            _ if found.insert(key.clone(), value.clone()).is_some() => twice.push(key.clone()),
            _ => {}
        }
    }
}

/// The names at the beginning of all expressions of a text.
fn used(text: &str) -> std::collections::HashSet<String> {
    let env = Environment::empty();
    let template = env.template_from_str(text);
    template.map_or_else(|_| Default::default(), |t| t.undeclared_variables(false))
}

fn fill(text: &str, known: &BTreeMap<String, Value>, for_shell: bool) -> Result<String, Unfilled> {
    if !text.contains(BEGIN) {
        return Ok(text.to_owned());
    }
    let wrong = |message: String, help: Option<String>| Unfilled { message, help };
    let names = used(text);
    if let Some(name) = names.iter().filter(|name| !known.contains_key(*name)).min() {
        let near = did_you_mean(name, known.keys().map(String::as_str));
        let all = || "`tprimat print schema job` lists its fields".to_owned();
        return Err(wrong(
            format!("`{{{{ {name} }}}}`: a job has no setting `{name}`"),
            Some(near.unwrap_or_else(all)),
        ));
    }
    if let Some(name) = names.iter().find(|name| known[*name].is_null()) {
        let message = format!("`{{{{ {name} }}}}`: `{name}` has no value here");
        return Err(wrong(message, None));
    }
    let used = known.iter().filter(|(name, _)| names.contains(*name));
    let context = minijinja::Value::from_pairs(
        used.map(|(name, value)| (name.as_str(), shown(value, for_shell))),
    );
    super::render::fill(text, context)
        .map_err(|why| wrong(format!("`{text}` cannot be filled in: {why}"), None))
}

/// A text is one word also where a shell reads it.
fn shown(value: &Value, for_shell: bool) -> minijinja::Value {
    match value {
        Value::String(text) if for_shell => {
            let quoted = shlex::try_quote(text).map_or_else(|_| text.clone(), Into::into);
            minijinja::Value::from(quoted)
        }
        other => minijinja::Value::from(minijinja::value::Serde(other)),
    }
}

/// `{seq_length}`, as Python's `format` and Snakemake spell it, would reach the script as it stands.
fn misspelt(text: &str) -> Option<Unfilled> {
    static NAMES: LazyLock<BTreeMap<String, Value>> =
        LazyLock::new(|| short_names(&Job::default()));
    let hidden = Hidden::of(text).text;
    hidden.match_indices('{').find_map(|(at, _)| {
        let (name, _) = hidden.get(at + 1..)?.split_once('}')?;
        NAMES.contains_key(name.trim()).then(|| Unfilled {
            message: format!("`{{{name}}}` would reach the script as it stands"),
            help: Some(format!(
                "write `{{{{ {} }}}}` for the setting of the job",
                name.trim()
            )),
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(command: &Value) -> Result<Value, Unfilled> {
        let job = Job {
            train_iters: 30,
            ..Job::default()
        };
        filled(command, &job, "llama tiny")
    }

    #[test]
    fn settings_are_filled_in_by_name_and_by_path() {
        let words = json!([
            "python",
            "t.py",
            "--n={{ train_iters }}",
            "{{ job.train_iters * 2 }}",
            "{{ model }}"
        ]);
        let expected = json!(["python", "t.py", "--n=30", "60", "llama tiny"]);
        assert_eq!(of(&words), Ok(expected));
        let shell = json!("cd x && python t.py {{ model }} {{ train_iters }}");
        assert_eq!(of(&shell), Ok(json!("cd x && python t.py 'llama tiny' 30")));
    }

    #[test]
    fn a_name_that_no_job_has_is_told_with_the_nearest_one() {
        let wrong = of(&json!(["x", "{{ seqlength }}"])).unwrap_err();
        assert_eq!(
            wrong.message,
            "`{{ seqlength }}`: a job has no setting `seqlength`"
        );
        assert_eq!(wrong.help.as_deref(), Some("did you mean `seq_length`?"));
        let wrong = of(&json!("t.py --seq {seq_length}")).unwrap_err();
        assert_eq!(
            wrong.help.as_deref(),
            Some("write `{{ seq_length }}` for the setting of the job")
        );
        let other = json!(["awk", "{print $1}"]);
        assert_eq!(of(&other), Ok(other));
    }

    /// A stranger's config.yaml must not take the memory of whoever looks at it.
    #[test]
    fn a_command_has_the_limits_of_a_template() {
        let wrong = of(&json!(["{{ 'x'|indent(1000000000) }}"])).unwrap_err();
        assert!(wrong.message.contains("cannot be filled in"), "{wrong:?}");
    }

    #[test]
    fn a_hidden_setting_comes_back_where_it_stood() {
        let hidden = Hidden::of("a {{ b c }}-{{ d }} e");
        assert_eq!(hidden.text.split(' ').count(), 3);
        let words: Vec<String> = hidden.text.split(' ').map(|w| hidden.shown(w)).collect();
        assert_eq!(words, ["a", "{{ b c }}-{{ d }}", "e"]);
    }
}
