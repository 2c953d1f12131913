//! Which cells a command is about: `--only`, `--skip`, `--where`, `--shard`, `FRAMEWORKS`,
//! `PARALLEL`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use globset::{GlobBuilder, GlobMatcher};

use super::{
    cell::{BASE, Cell},
    lacking::Unmet,
};
use crate::{
    config::{framework_names, vendor_names},
    error::{Error, Problem, Result, Source, did_you_mean, nearest},
};

/// Filters that a cell must all pass; within one filter, any of its patterns will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// `platform/framework/model/parallelism@axis=value`, from the left as far as wanted; each part
    /// a glob.
    pub only: Vec<String>,
    pub skip: Vec<String>,
    /// `axis=value`; several values of one axis are alternatives.
    pub where_: Vec<String>,
    /// `(i, n)`: the i-th of n parts of the matrix, counted from 1.
    pub shard: Option<(u32, u32)>,
    /// Names of `$FRAMEWORKS`.
    pub frameworks: Vec<String>,
    /// Names of `$PARALLEL`.
    pub strategies: Vec<String>,
}

impl Selection {
    /// What a cell's name on the command line selects; without a meaning of its own for any part of
    /// it.
    #[must_use]
    pub fn of_cell(name: &str) -> Self {
        Self {
            only: vec![name.to_owned()],
            ..Self::default()
        }
    }

    /// Adds what `FRAMEWORKS="nemo,transformers"` and `PARALLEL=…` ask for.
    #[must_use]
    pub fn with_environment(mut self, env: &BTreeMap<String, String>) -> Self {
        let names = |variable: &str| -> Vec<String> {
            let text = env.get(variable).map_or("", String::as_str);
            text.split([',', ' '])
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        self.frameworks = names("FRAMEWORKS");
        self.strategies = names("PARALLEL");
        self
    }

    /// `2/8`, as `--shard` takes it.
    pub fn parse_shard(text: &str) -> Result<(u32, u32)> {
        let parts = text
            .split_once('/')
            .and_then(|(i, n)| Some((i.trim().parse().ok()?, n.trim().parse().ok()?)));
        parts.filter(|(i, n)| (1..=*n).contains(i)).ok_or_else(|| {
            let problem = Problem::new(format!(
                "--shard must be i/n with i from 1 to n, not {text}"
            ));
            let source = Source::new("--shard", text);
            Error::invalid(
                problem
                    .at(&source, 0..text.len(), "expected i/n")
                    .help("as in --shard 2/8"),
            )
        })
    }

    /// For each cell: is it selected? That filters leave none is an error, with the nearest names;
    /// that one shard of several has none is not, for the others have them.
    pub fn select(&self, cells: &[Cell]) -> Result<Vec<bool>> {
        let mut selected = vec![true; cells.len()];
        if *self == Self::default() && !cells.is_empty() {
            return Ok(selected);
        }
        let names = Names::of(cells);
        if !self.only.is_empty() {
            keep(&mut selected, &any_of("--only", &self.only, &names)?);
        }
        for (variable, values, depth) in [
            ("FRAMEWORKS", &self.frameworks, 1),
            ("PARALLEL", &self.strategies, 3),
        ] {
            if !values.is_empty() {
                keep(
                    &mut selected,
                    &variable_filter(variable, values, depth, &names)?,
                );
            }
        }
        for (axis, values) in conditions(&self.where_, &names)? {
            keep(&mut selected, &names.with_value(&axis, &values)?);
        }
        if !self.skip.is_empty() {
            let skipped = any_of("--skip", &self.skip, &names)?;
            selected
                .iter_mut()
                .zip(skipped)
                .for_each(|(cell, skip)| *cell &= !skip);
        }
        if !selected.contains(&true) {
            return Err(Error::NothingSelected {
                message: "no cell passes all of the filters".into(),
                help: None,
            });
        }
        if let Some((part, parts)) = self.shard {
            let of_part = |position: usize| {
                position % parts.max(1) as usize == part.saturating_sub(1) as usize
            };
            selected
                .iter_mut()
                .enumerate()
                .for_each(|(position, cell)| *cell &= of_part(position));
        }
        Ok(selected)
    }
}

impl Selection {
    /// Names among several (`{nemo,tran}`, `FRAMEWORKS=nemo,tran`) that no cell has. Where others
    /// do, the selection is not empty, and nothing else would tell.
    #[must_use]
    pub fn unmet(&self, cells: &[Cell]) -> Vec<Unmet> {
        let names = Names::of(cells);
        let mut asked: Vec<(String, &'static str, String)> = Vec::new();
        for text in &self.only {
            let (path, _) = halves(text);
            let segments = split_outside_braces(path, '/')
                .into_iter()
                .filter(|part| !part.is_empty());
            for (dimension, segment) in BASE.into_iter().zip(segments) {
                for name in alternatives(segment) {
                    asked.push((format!("--only {text}"), dimension, name));
                }
            }
        }
        for (variable, dimension, values) in [
            ("FRAMEWORKS", "framework", &self.frameworks),
            ("PARALLEL", "parallelism", &self.strategies),
        ] {
            let given = format!("{variable}={}", values.join(","));
            asked.extend(
                values
                    .iter()
                    .map(|name| (given.clone(), dimension, name.clone())),
            );
        }
        let is_unmet = |(_, dimension, name): &(String, &'static str, String)| {
            !name.is_empty()
                && glob("", name)
                    .is_ok_and(|glob| !names.matching(dimension, &glob).contains(&true))
        };
        asked.retain(is_unmet);
        let unmet = |(given, dimension, name)| Unmet {
            given,
            dimension,
            name,
        };
        asked.into_iter().map(unmet).collect()
    }
}

/// `a{b,c}` → `ab`, `ac`; anything less simple as it is.
fn alternatives(segment: &str) -> Vec<String> {
    let parts = segment
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (inner, after)))
            if !inner.contains(['{', '\\']) && !after.contains(['{', '}']) =>
        {
            inner
                .split(',')
                .map(|one| format!("{before}{one}{after}"))
                .collect()
        }
        _ => vec![segment.to_owned()],
    }
}

fn keep(selected: &mut [bool], passed: &[bool]) {
    selected
        .iter_mut()
        .zip(passed)
        .for_each(|(cell, passed)| *cell &= passed);
}

/// The cells that match any of the patterns; each pattern must match one, or it is a slip of the
/// pen.
fn any_of(option: &str, patterns: &[String], names: &Names<'_>) -> Result<Vec<bool>> {
    let mut any = vec![false; names.cells.len()];
    for text in patterns {
        let pattern = Pattern::parse(option, text)?;
        let matched = pattern.matches(names);
        if !matched.contains(&true) {
            return Err(pattern.nothing(option, names));
        }
        any.iter_mut()
            .zip(matched)
            .for_each(|(any, matched)| *any |= matched);
    }
    Ok(any)
}

/// A variable may name more than this matrix has, for it is set for many; but not only that.
fn variable_filter(
    variable: &str,
    values: &[String],
    depth: usize,
    names: &Names<'_>,
) -> Result<Vec<bool>> {
    let mut any = vec![false; names.cells.len()];
    let mut missed = None;
    for value in values {
        let pattern = Pattern::parse(variable, &format!("{}{value}", "*/".repeat(depth)))?;
        let matched = pattern.matches(names);
        if !matched.contains(&true) {
            missed = missed.or(Some(pattern));
        }
        any.iter_mut()
            .zip(matched)
            .for_each(|(any, matched)| *any |= matched);
    }
    match missed {
        Some(pattern) if !any.contains(&true) => Err(pattern.nothing(variable, names)),
        _ => Ok(any),
    }
}

/// `--where`s by axis.
fn conditions(wheres: &[String], names: &Names<'_>) -> Result<Vec<(String, Vec<String>)>> {
    let mut conditions: Vec<(String, Vec<String>)> = Vec::new();
    for text in wheres {
        let problem = |message: String, label: &str| {
            Problem::new(message).at(&Source::new("--where", text), 0..text.len(), label)
        };
        let Some((axis, value)) = text.split_once('=') else {
            let problem = problem(
                format!("--where {text} has no value"),
                "expected AXIS=VALUE",
            );
            return Err(Error::invalid(problem.help("as in --where precision=fp8")));
        };
        if !names.dimensions().contains(&axis) {
            let help = did_you_mean(axis, names.dimensions())
                .unwrap_or_else(|| format!("there are {}", names.dimensions().join(", ")));
            return Err(Error::invalid(
                problem(format!("unknown axis `{axis}`"), "no axis has this name").help(help),
            ));
        }
        match conditions.iter_mut().find(|(known, _)| known == axis) {
            Some((_, values)) => values.push(value.to_owned()),
            None => conditions.push((axis.to_owned(), vec![value.to_owned()])),
        }
    }
    Ok(conditions)
}

/// What the cells are called, on each dimension.
struct Names<'a> {
    cells: &'a [Cell],
    platforms: Vec<&'a Arc<str>>,
    frameworks: Vec<&'a Arc<str>>,
    axes: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn of(cells: &'a [Cell]) -> Self {
        let mut axes: Vec<&str> = Vec::new();
        for (name, _) in cells.iter().flat_map(|cell| &cell.axes) {
            if !axes.contains(&&**name) {
                axes.push(name);
            }
        }
        let mut names = Self {
            cells,
            platforms: Vec::new(),
            frameworks: Vec::new(),
            axes,
        };
        names.platforms = names.distinct("platform");
        names.frameworks = names.distinct("framework");
        names
    }

    fn dimensions(&self) -> Vec<&'a str> {
        BASE.into_iter().chain(self.axes.iter().copied()).collect()
    }

    fn distinct(&self, dimension: &str) -> Vec<&'a Arc<str>> {
        let mut seen = std::collections::HashSet::new();
        self.cells
            .iter()
            .filter_map(|cell| cell.value(dimension))
            .filter(|value| seen.insert(*value))
            .collect()
    }

    /// A cell's id on a dimension, and the other names it goes by unless those are ids of their
    /// own.
    fn called(&self, cell: &'a Cell, dimension: &str) -> Vec<&'a str> {
        let Some(id) = cell.value(dimension) else {
            return Vec::new();
        };
        let (others, ids): (Vec<&str>, _) = match dimension {
            "platform" => (vendor_names(cell.vendor).to_vec(), &self.platforms),
            "framework" => {
                let names = framework_names(id).iter().map(String::as_str);
                (names.collect(), &self.frameworks)
            }
            _ => return vec![id],
        };
        let aliases = others
            .into_iter()
            .filter(|other| ids.iter().all(|id| &***id != *other));
        std::iter::once(&**id).chain(aliases).collect()
    }

    /// For each cell, does the glob match what it is called? Each name is matched once.
    fn matching(&self, dimension: &str, glob: &GlobMatcher) -> Vec<bool> {
        let mut known: HashMap<&str, bool> = HashMap::new();
        let one = |cell: &'a Cell| {
            let Some(id) = cell.value(dimension) else {
                return false;
            };
            *known.entry(id).or_insert_with(|| {
                self.called(cell, dimension)
                    .iter()
                    .any(|name| glob.is_match(name))
            })
        };
        self.cells.iter().map(one).collect()
    }

    fn with_value(&self, axis: &str, values: &[String]) -> Result<Vec<bool>> {
        let mut any = vec![false; self.cells.len()];
        for value in values {
            // A matrix may say 3e-3 of what is called 0.003.
            let number = value.parse::<f64>().ok();
            let names = self.distinct(axis).into_iter();
            let mut same = names.filter(|name| number.is_some() && name.parse().ok() == number);
            let name = same.next().map_or(value.as_str(), |name| &**name);
            let matched = self.matching(axis, &glob("--where", name)?);
            if !matched.contains(&true) {
                return Err(self.nothing(&format!("--where {axis}={value}"), axis, value));
            }
            any.iter_mut()
                .zip(matched)
                .for_each(|(any, matched)| *any |= matched);
        }
        Ok(any)
    }

    /// No cell is called `value` on `dimension`.
    fn nothing(&self, given: &str, dimension: &str, value: &str) -> Error {
        let mut known: Vec<&str> = self
            .distinct(dimension)
            .into_iter()
            .map(|name| &**name)
            .collect();
        let listed = known.join(", ");
        known.extend(
            self.cells
                .iter()
                .flat_map(|cell| self.called(cell, dimension)),
        );
        known.dedup();
        let elsewhere = BASE
            .iter()
            .position(|other| self.distinct(other).iter().any(|name| &***name == value));
        let help = match (nearest(value, known), elsewhere) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some(depth)) => format!(
                "`{value}` is a {}: --only '{}{value}'",
                BASE[depth],
                "*/".repeat(depth)
            ),
            (None, None) => format!("there are {listed}"),
        };
        let message = format!("{given}: no cell has the {dimension} `{value}`");
        Error::NothingSelected {
            message,
            help: Some(help),
        }
    }
}

/// One `--only` or `--skip`.
struct Pattern {
    text: String,
    /// Dimension, text and matcher.
    parts: Vec<(String, String, GlobMatcher)>,
}

impl Pattern {
    fn parse(option: &str, text: &str) -> Result<Self> {
        let (path, axes) = halves(text);
        let segments = split_outside_braces(path.trim_end_matches('/'), '/');
        let bad = |message: String| {
            Error::invalid(Problem::new(message).at(
                &Source::new(option, text),
                0..text.len(),
                "not a selection",
            ))
        };
        if segments.len() > BASE.len() || text.is_empty() {
            return Err(bad(format!(
                "{option} {text}: platform/framework/model/parallelism is all there is"
            )));
        }
        let mut parts = Vec::new();
        for (dimension, segment) in BASE
            .iter()
            .zip(segments)
            .filter(|(_, segment)| !segment.is_empty())
        {
            parts.push((
                (*dimension).to_owned(),
                segment.to_owned(),
                glob(option, segment)?,
            ));
        }
        for condition in axes
            .map(|axes| split_outside_braces(axes, ','))
            .unwrap_or_default()
        {
            let Some((axis, value)) = condition.trim().split_once('=') else {
                return Err(bad(format!(
                    "{option} {text}: `{condition}` is not AXIS=VALUE"
                )));
            };
            parts.push((axis.to_owned(), value.to_owned(), glob(option, value)?));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    fn matches(&self, names: &Names<'_>) -> Vec<bool> {
        let mut all = vec![true; names.cells.len()];
        for (dimension, _, glob) in &self.parts {
            keep(&mut all, &names.matching(dimension, glob));
        }
        all
    }

    /// Why nothing matched: the first part that no cell has, or their combination.
    fn nothing(&self, option: &str, names: &Names<'_>) -> Error {
        let given = match option.starts_with("--") {
            true => format!("{option} {}", self.text),
            false => format!("{option}={}", self.text.trim_start_matches("*/")),
        };
        for (dimension, text, glob) in &self.parts {
            if !names.dimensions().contains(&dimension.as_str()) {
                let help = did_you_mean(dimension, names.dimensions());
                return Error::NothingSelected {
                    message: format!("{given}: there is no axis `{dimension}`"),
                    help,
                };
            }
            if !names.matching(dimension, glob).contains(&true) {
                return names.nothing(&given, dimension, text);
            }
        }
        let ids: Vec<String> = names.cells.iter().map(ToString::to_string).collect();
        // Whoever writes the beginning of an id means it.
        let length = self.text.chars().count();
        let distance = |id: &&String| {
            strsim::levenshtein(&self.text, &id.chars().take(length).collect::<String>())
        };
        let near = ids.iter().min_by_key(distance);
        let help = near.map(|id| format!("the nearest cell is {id}"));
        Error::NothingSelected {
            message: format!("{given}: no cell has all of these"),
            help,
        }
    }
}

/// The path and the axes of a pattern. Tables call cells by their axes alone where nothing else tells them apart: `lr=0.1,bs=4`.
fn halves(text: &str) -> (&str, Option<&str>) {
    match text.split_once('@') {
        Some((path, axes)) => (path, Some(axes)),
        None if text.contains('=') && !text.contains('/') => ("", Some(text)),
        None => (text, None),
    }
}

/// A pattern that an option has; capitals and small letters are alike.
pub fn glob(option: &str, text: &str) -> Result<GlobMatcher> {
    // Nobody tells `NeMo` and `nemo` apart by their case.
    GlobBuilder::new(text)
        .case_insensitive(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| {
            let problem = Problem::new(format!("{option} {text}: {}", error.kind()));
            Error::invalid(problem.at(&Source::new(option, text), 0..text.len(), "not a pattern"))
        })
}

fn split_outside_braces(text: &str, separator: char) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == separator && depth == 0
    })
    .collect()
}
