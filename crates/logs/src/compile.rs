//! A format's table → what the engine runs. Mistakes in a table are found here, before any log.

use std::{collections::BTreeMap, sync::Arc};

use memchr::memmem::Finder;
use regex::{Regex, RegexBuilder};
use serde_json::Value;
use tprimat_base::words::did_you_mean;

use super::{
    fields::{Field, PLAIN, known_names},
    format,
    numbers::{
        grouped_number, setting, stated, suffixed_number, thousands_behind, whole_text_number,
    },
    places::pattern_of,
    table::{Conversion, LineTable, LogSection, Named},
    wild::Wild,
};

/// Compiled size of one pattern.
const MAX_SIZE: usize = 4 << 20;
const MAX_PATTERNS: usize = 64;

/// Why a format's table cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// The keys and indices that lead to the value to blame; none if it is the format's name.
    pub at: Vec<String>,
    pub message: String,
    pub help: Option<String>,
}

type Compiling<T> = Result<T, PatternError>;

#[derive(Debug)]
pub struct Table {
    pub section: LogSection,
    pub rules: Vec<Rule>,
    pub names: Wild<Target>,
    pub settings: Wild<Target>,
    /// Some line states the number of its step.
    pub numbered: bool,
}

/// A kind of line, compiled.
#[derive(Debug)]
pub struct Rule {
    pub table: LineTable,
    pub when: Pattern,
    pub needs: Vec<Regex>,
    pub patterns: Vec<Pattern>,
    pub after: Vec<(Finder<'static>, Target)>,
    pub names: Wild<Target>,
    pub complete: Option<Regex>,
}

#[derive(Debug)]
pub struct Pattern {
    pub regex: Regex,
    pub groups: Vec<(usize, Group)>,
}

#[derive(Clone, Debug)]
pub enum Group {
    /// The name of what `value` is.
    Key,
    Value,
    Target(Target),
}

/// A field, and how the texts that are found for it are converted.
#[derive(Clone, Debug)]
pub struct Target {
    pub field: Field,
    pub conversion: Conversion,
    values: Wild<Value>,
    /// An entry of `settings`: a number or truth, or one of its values.
    is_setting: bool,
}

/// What a text says of a number.
pub enum Number<'t> {
    Stated(f64),
    /// The trainer prints this number where it has none.
    Absent(f64),
    Unreadable(&'t str),
}

fn wrong<T>(at: &[&str], message: impl Into<String>, help: Option<String>) -> Compiling<T> {
    Err(PatternError {
        at: at.iter().map(|key| (*key).to_owned()).collect(),
        message: message.into(),
        help,
    })
}

impl Table {
    pub fn compile(section: &LogSection) -> Compiling<Arc<Self>> {
        let mut section = section.clone();
        if !section.patterns.is_empty() {
            // Patterns without a kind of line are one kind that every line is of.
            section.lines.push(LineTable {
                patterns: section.patterns.clone(),
                ..LineTable::default()
            });
        }
        let settings = targets(&["settings"], &section.settings, true)?;
        let names = targets(&["names"], &section.names, false)?;
        let mut rules = Vec::new();
        for (at, table) in section.lines.iter().enumerate() {
            rules.push(Rule::compile(at, table, &section)?);
        }
        let numbered = rules.iter().any(Rule::states_step);
        Ok(Arc::new(Self {
            section,
            rules,
            names: names.into_iter().collect(),
            settings: settings.into_iter().collect(),
            numbered,
        }))
    }
}

impl Rule {
    fn compile(at: usize, table: &LineTable, section: &LogSection) -> Compiling<Self> {
        let index = at.to_string();
        let at = ["lines", &index];
        // The patterns of the table itself.
        let at: &[&str] = if table.name.is_empty() { &[] } else { &at };
        let below = |key: &'static str| [at, &[key]].concat();
        if table.patterns.len() > MAX_PATTERNS {
            return wrong(
                &below("patterns"),
                format!("more than {MAX_PATTERNS} patterns"),
                None,
            );
        }
        let names = targets(&below("names"), &table.names, false)?;
        let known = |name: &str| -> Option<Target> {
            let own = table.names.get(name).or_else(|| section.names.get(name));
            let field = Target::new(&Named::Plain(name.to_owned()), false);
            let named = || Target::new(own?, false);
            let setting = || Target::new(section.settings.get(name)?, true);
            field.or_else(named).or_else(setting)
        };
        let mut patterns = Vec::new();
        for (nth, text) in table.patterns.iter().enumerate() {
            let nth = nth.to_string();
            let at = [&below("patterns")[..], &[&nth]].concat();
            patterns.push(Pattern::compile(&at, text, &known, true)?);
        }
        let mut needs = Vec::new();
        for (nth, text) in table.needs.iter().enumerate() {
            let nth = nth.to_string();
            needs.push(regex(&[&below("needs")[..], &[&nth]].concat(), text)?);
        }
        let after = targets(&below("after"), &table.after, false)?.into_iter();
        let complete = table.complete.as_ref();
        let complete = complete.map(|text| regex(&below("complete"), text));
        Ok(Self {
            table: table.clone(),
            when: Pattern::compile(&below("when"), &table.when, &known, false)?,
            needs,
            patterns,
            after: after
                .map(|(text, target)| (Finder::new(&text).into_owned(), target))
                .collect(),
            names: names.into_iter().collect(),
            complete: complete.transpose()?,
        })
    }

    fn states_step(&self) -> bool {
        let patterns = self.patterns.iter().chain([&self.when]);
        let mut groups = patterns.flat_map(|pattern| &pattern.groups);
        groups.any(|(_, group)| {
            matches!(group, Group::Target(target) if matches!(target.field, Field::Step | Field::StepInEpoch))
        })
    }
}

impl Pattern {
    fn compile(
        at: &[&str],
        given: &str,
        known: &dyn Fn(&str) -> Option<Target>,
        must_find: bool,
    ) -> Compiling<Self> {
        // A kind of line may have no group, and then what stands in angle brackets is text.
        let text = match must_find {
            true => &pattern_of(given),
            false => given,
        };
        let regex = regex(at, text)?;
        let mut groups = Vec::new();
        for (place, name) in regex.capture_names().enumerate() {
            let Some(name) = name else { continue };
            let group = match name {
                "key" => Group::Key,
                "value" => Group::Value,
                _ => match known(name) {
                    Some(target) => Group::Target(target),
                    None => return unknown_field(at, name),
                },
            };
            groups.push((place, group));
        }
        if must_find && groups.is_empty() {
            let help = match format::named(given) {
                Some(format) => format!(
                    "`{}` is a format that tprimat finds by itself: leave the line out",
                    format.name
                ),
                None => "name what it finds, as in `step <step> loss <loss>` or (?P<step>\\d+)"
                    .to_owned(),
            };
            let message = "the pattern has no named group, so it finds nothing";
            return wrong(at, message, Some(help));
        }
        Ok(Self { regex, groups })
    }
}

fn regex(at: &[&str], text: &str) -> Compiling<Regex> {
    let built = RegexBuilder::new(text)
        .size_limit(MAX_SIZE)
        .dfa_size_limit(MAX_SIZE)
        .build();
    built.or_else(|error| {
        // The engine draws carets under several lines of its own; the last one says what is wrong.
        let why = error.to_string();
        let why = why.lines().last().unwrap_or_default().trim();
        let why = why.trim_start_matches("error: ");
        wrong(at, format!("not a pattern: {why}"), None)
    })
}

fn unknown_field<T>(at: &[&str], name: &str) -> Compiling<T> {
    let known = known_names();
    let near = did_you_mean(name, known.iter().map(String::as_str));
    let near = near.map_or_else(String::new, |question| question + " ");
    let plain: Vec<&str> = PLAIN.iter().map(|(name, _)| *name).collect();
    let help = format!(
        "{near}groups: {}, step_time_<unit>, memory_<unit>, effective_<setting>, evaluation_<name>, \
         total_<name>, other_<name>",
        plain.join(", ")
    );
    wrong(at, format!("`{name}` is not a field of a step"), Some(help))
}

fn targets(
    at: &[&str],
    names: &BTreeMap<String, Named>,
    is_setting: bool,
) -> Compiling<Vec<(String, Target)>> {
    let mut all = Vec::new();
    for (name, named) in names {
        match Target::new(named, is_setting) {
            Some(target) => all.push((name.clone(), target)),
            None => return unknown_field(&[at, &[name]].concat(), &named.conversion().field),
        }
    }
    Ok(all)
}

impl Target {
    fn new(named: &Named, is_setting: bool) -> Option<Self> {
        let conversion = named.conversion();
        let field = match is_setting {
            true => Field::Effective(conversion.field.clone()),
            false => Field::named(&conversion.field)?,
        };
        let values = conversion.values.clone().into_iter().collect();
        Some(Self {
            field,
            conversion,
            values,
            is_setting,
        })
    }

    /// A text's number: the whole text, but for a unit, or what it begins with.
    pub fn number<'t>(&self, text: &'t str, whole: bool) -> Number<'t> {
        let conversion = &self.conversion;
        let read = if conversion.units.is_empty() && whole {
            whole_text_number(text).or_else(|| suffixed_number(text))
        } else {
            grouped_number(text).and_then(|(value, tail)| {
                if conversion.units.is_empty() {
                    let is_rate = || self.field.is_rate();
                    let scale = thousands_behind(tail).filter(|_| is_rate());
                    return Some(value * scale.unwrap_or(1.0));
                }
                let units = conversion.units.iter();
                let fitting =
                    units.filter(|(unit, _)| tail.trim_start().starts_with(unit.as_str()));
                let (_, divisor) = fitting.max_by_key(|(unit, _)| unit.len())?;
                Some(value / divisor)
            })
        };
        match read {
            None => Number::Unreadable(text),
            Some(value) if conversion.absent == Some(value) => Number::Absent(value),
            Some(value) if conversion.inverse => Number::Stated(1.0 / value),
            Some(value) => Number::Stated(value),
        }
    }

    /// A text's setting.
    pub fn setting(&self, text: &str) -> Option<Value> {
        if self.conversion.items {
            let items = text.trim_start_matches('[').split(']').next()?.split(',');
            let count = items.filter(|item| !item.trim().is_empty()).count();
            return Some(count).filter(|n| *n > 0).map(Value::from);
        }
        if !self.values.is_empty() {
            let text = text.trim().trim_matches(['\'', '"']).to_lowercase();
            if text == "none" && !self.conversion.values.contains_key("none") {
                return None;
            }
            let (value, part) = self.values.get(&text)?;
            return Some(match value {
                Value::String(meaning) => meaning.replace('*', part).into(),
                other => other.clone(),
            });
        }
        let value = stated(text)?;
        match &value {
            Value::String(text) if text == "None" => None,
            _ if !self.is_setting => Some(value),
            Value::Bool(_) => Some(value),
            // A negative number means: as many as there are, or as it comes out.
            Value::Number(number) => number.as_f64().filter(|n| *n >= 0.0).map(setting),
            _ => None,
        }
    }
}
