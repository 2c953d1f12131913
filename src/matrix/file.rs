//! What a matrix file says, read and checked against the config, before it is multiplied out.

use std::{collections::HashMap, ops::Range, sync::Arc};

use serde_json::Value;
use toml::de::DeTable;

use super::{
    cell::BASE,
    implied::{strategies_named, unknown_strategies},
    read::{Item, Placed, TomlReader, in_file_order, json, print},
};
use crate::{
    config::{Config, Leaf, Origin, Setting, is_plain_name, not_of_cell, settings_called},
    error::{Problem, Source, did_you_mean, nearest},
    results::{fields, known_field},
};

pub(super) const FILE_KEYS: &[&str] = &["matrix", "exclude", "override", "include"];
/// The keys of [matrix].
pub(super) const KEYS: &[&str] = &[
    "name",
    "platform",
    "framework",
    "model",
    "parallelism",
    "repeats",
    "across",
    "axes",
];
const MAX_REPEATS: i64 = 10_000;

const AN_AXIS: &str = "an axis is a table below [matrix.axes]: `[matrix.axes.compile]`, then `path = \"training.compile\"` and `values = [false, true]`";

/// One dimension of the product: one of [`BASE`], or an axis that sets a path of the config.
#[derive(Debug)]
pub(super) struct Dimension {
    pub name: Arc<str>,
    /// What cells of the product may be here, then what only included cells are.
    pub values: Vec<DimensionValue>,
    positions: HashMap<Arc<str>, usize>,
    pub product_len: usize,
    /// The config key that an axis sets; none for one of [`BASE`].
    pub leaf: Option<Placed<Leaf>>,
}

#[derive(Debug)]
pub(super) struct DimensionValue {
    pub name: Arc<str>,
    pub setting: Option<Setting>,
}

impl Dimension {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            values: Vec::new(),
            positions: HashMap::new(),
            product_len: 0,
            leaf: None,
        }
    }
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| &*value.name)
    }
}

/// For some dimensions, which of their values are meant.
#[derive(Debug, Default)]
pub(super) struct Where(pub Vec<(usize, Vec<bool>)>);

impl Where {
    /// `point`: the index of the value on each dimension, none where an included cell has none.
    pub fn matches(&self, point: &[Option<usize>]) -> bool {
        self.0
            .iter()
            .all(|(dimension, wanted)| point[*dimension].is_some_and(|value| wanted[value]))
    }
}

#[derive(Debug)]
pub(super) struct MatrixFile {
    pub name: String,
    pub repeats: u32,
    pub across: Vec<String>,
    pub dimensions: Vec<Dimension>,
    pub excludes: Vec<(Where, String)>,
    pub overrides: Vec<(Where, Vec<Setting>)>,
    pub includes: Vec<Placed<Vec<Option<usize>>>>,
}

pub(super) struct MatrixReader<'a> {
    pub toml: TomlReader<'a>,
    pub config: &'a Config,
    pub recipes: &'a [&'a str],
    pub auto_platform: Option<&'a str>,
    pub strategies: &'a [String],
    pub dimensions: Vec<Dimension>,
    /// Strategies that the file lists, and that `$PARALLEL` replaced.
    pub replaced: Vec<String>,
}

impl MatrixFile {
    pub fn read(
        source: &Arc<Source>,
        config: &Config,
        recipes: &[&str],
        auto_platform: Option<&str>,
        strategies: &[String],
    ) -> Result<Self, Vec<Problem>> {
        let (root, errors) = DeTable::parse_recoverable(&source.text);
        if !errors.is_empty() {
            let problem = |error: toml::de::Error| {
                let message = format!("not TOML: {}", error.message().replace('\n', ", "));
                Problem::new(message).at(source, error.span().unwrap_or(0..0), "here")
            };
            // What comes after the first mistake was read in the wrong place.
            let begin = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
            let first = match unclosed(&source.text) {
                Some(at) => Some(Problem::new("not TOML: this bracket is never closed").at(
                    source,
                    at..at + 1,
                    "its other half is missing",
                )),
                None => errors.into_iter().min_by_key(begin).map(problem),
            };
            return Err(first.into_iter().collect());
        }
        let toml = TomlReader {
            source,
            problems: Vec::new(),
        };
        let mut reader = MatrixReader {
            toml,
            config,
            recipes,
            auto_platform,
            strategies,
            dimensions: Vec::new(),
            replaced: Vec::new(),
        };
        let file = reader.file(root.get_ref());
        if reader.toml.problems.is_empty() {
            Ok(file)
        } else {
            Err(reader.toml.problems)
        }
    }
}

/// Where a value's bracket opens that is never closed: the next key, or the end of the file, comes
/// first.
fn unclosed(text: &str) -> Option<usize> {
    let mut open: Vec<(usize, u8)> = Vec::new();
    let mut is_value = false;
    let mut rest = text.bytes().enumerate();
    while let Some((at, byte)) = rest.next() {
        match byte {
            b'#' => while rest.next().is_some_and(|(_, byte)| byte != b'\n') {},
            b'"' | b'\'' => loop {
                match rest.next() {
                    Some((_, b'\\')) if byte == b'"' => _ = rest.next(),
                    Some((_, next)) if next == byte => break,
                    // What is wrong is the text, not a bracket.
                    Some((_, b'\n')) | None => return None,
                    Some(_) => {}
                }
            },
            b'=' => match open.last() {
                Some((bracket, b'[')) => return Some(*bracket),
                _ => is_value = true,
            },
            b'\n' if open.is_empty() => is_value = false,
            b'[' | b'{' if is_value => open.push((at, byte)),
            b']' | b'}' if is_value => _ = open.pop(),
            _ => {}
        }
    }
    open.first().map(|(at, _)| *at)
}

/// How a matrix sets what config.yaml has under this name.
fn a_setting(key: &str) -> Option<String> {
    let paths = settings_called(key)?;
    Some(format!(
        "it is a setting, {paths}: `set` of an [[override]] gives it one value, an axis several ([matrix.axes.{key}] with `path` and `values`)"
    ))
}

impl MatrixReader<'_> {
    fn file(&mut self, root: &DeTable<'_>) -> MatrixFile {
        self.toml
            .only_keys_but(root, "a matrix file", FILE_KEYS, |key| match key {
                "axis" | "axes" => Some(AN_AXIS.to_owned()),
                _ if nearest(key, FILE_KEYS.iter().copied()).is_some() => None,
                _ => match nearest(key, KEYS.iter().copied()) {
                    Some(name) => Some(format!("`{name}` stands below [matrix]")),
                    None => a_setting(key),
                },
            });
        let (name, repeats, across) = self.head(root);
        let includes = self.includes(root);
        MatrixFile {
            name,
            repeats,
            across,
            excludes: self.excludes(root),
            overrides: self.overrides(root),
            includes,
            dimensions: std::mem::take(&mut self.dimensions),
        }
    }

    /// `[matrix]` and its axes: fills `dimensions`.
    fn head(&mut self, root: &DeTable<'_>) -> (String, u32, Vec<String>) {
        let stem = self
            .toml
            .source
            .name
            .rsplit('/')
            .next()
            .unwrap_or("")
            .trim_end_matches(".toml")
            .to_owned();
        let empty = DeTable::new();
        let matrix = match root.get("matrix") {
            Some(item) => self.toml.table(item, "matrix").unwrap_or(&empty),
            None => {
                self.toml.problem_with_help(
                    0..0,
                    "there is no [matrix]",
                    "",
                    "a file begins with [matrix]",
                );
                &empty
            }
        };
        self.toml
            .only_keys_but(matrix, "[matrix]", KEYS, |key| match key {
                "axis" => Some(AN_AXIS.to_owned()),
                _ if nearest(key, KEYS.iter().copied()).is_some() => None,
                _ => a_setting(key),
            });
        for base in BASE {
            self.base_dimension(matrix, base, root.get("matrix").map(toml::Spanned::span));
        }
        let axes = matrix.get("axes");
        if let Some(list) = axes.filter(|item| item.get_ref().is_array()) {
            self.toml.problem_with_help(
                list.span(),
                "`matrix.axes` must be a table, not a list",
                "an axis without a name",
                AN_AXIS,
            );
        } else if let Some(axes) = axes.and_then(|item| self.toml.table(item, "matrix.axes")) {
            for (name, item) in in_file_order(axes) {
                self.axis(&name, item);
            }
        }
        let name = matrix
            .get("name")
            .and_then(|item| self.toml.text(item, "name"))
            .map_or(stem, |name| name.value);
        (name, self.repeats(matrix), self.across(matrix))
    }

    /// Fields of the workload that the published comparison may cross, as `compare --across` takes
    /// them.
    fn across(&mut self, matrix: &DeTable<'_>) -> Vec<String> {
        let Some(item) = matrix.get("across") else {
            return Vec::new();
        };
        let written = self.toml.texts(item, "across");
        for field in written.iter().filter(|field| !known_field(&field.value)) {
            let help = did_you_mean(&field.value, fields())
                .unwrap_or_else(|| format!("one of {}", fields().collect::<Vec<_>>().join(", ")));
            self.toml.problem_with_help(
                field.span.clone(),
                format!("no field of a workload is called `{}`", field.value),
                "cells cannot be compared across it",
                help,
            );
        }
        written.into_iter().map(|field| field.value).collect()
    }

    fn repeats(&mut self, matrix: &DeTable<'_>) -> u32 {
        let runs = &self.config.settings().benchmarking.runs;
        let default = u32::try_from(runs.default_num_runs).unwrap_or(1);
        let Some(item) = matrix.get("repeats") else {
            return default;
        };
        match json(item.get_ref())
            .ok()
            .and_then(|value| value.as_i64())
            .filter(|n| (1..=MAX_REPEATS).contains(n))
        {
            Some(repeats) => u32::try_from(repeats).unwrap_or(default),
            None => {
                let wanted = format!("a whole number from 1 to {MAX_REPEATS}");
                self.toml.problem(
                    item.span(),
                    format!("`repeats` must be {wanted}"),
                    format!("expected {wanted}"),
                );
                default
            }
        }
    }

    fn base_dimension(&mut self, matrix: &DeTable<'_>, base: &str, head: Option<Range<usize>>) {
        let names = match matrix.get(base) {
            Some(item) => {
                let names = self.toml.texts(item, base);
                if base == "parallelism" {
                    self.chosen_strategies(names, item.span())
                } else {
                    names
                }
            }
            None => {
                // A key that is only misspelt was told of already.
                let names = |key: &str| {
                    !KEYS.contains(&key) && nearest(key, KEYS.iter().copied()) == Some(base)
                };
                let is_misspelt = matrix.keys().any(|key| names(key.as_ref()));
                if let Some(head) = head.filter(|_| !is_misspelt) {
                    self.toml
                        .problem(head, format!("[matrix] has no `{base}`"), "expected one");
                }
                Vec::new()
            }
        };
        let mut dimension = Dimension::new(base);
        for written in names {
            let Some(id) = self.base_name(base, &written) else {
                continue;
            };
            self.add(&mut dimension, &id, written.span, None);
        }
        dimension.product_len = dimension.values.len();
        self.dimensions.push(dimension);
    }

    /// `PARALLEL=mine` runs a matrix with a strategy that config.yaml declares and the matrix does
    /// not name.
    fn chosen_strategies(
        &mut self,
        names: Vec<Placed<String>>,
        span: Range<usize>,
    ) -> Vec<Placed<String>> {
        let (config, wanted) = (self.config, self.strategies);
        self.toml
            .problems
            .extend(unknown_strategies(config, wanted));
        let chosen = strategies_named(config, wanted);
        let has = |id: &&str| names.iter().any(|known| known.value == *id);
        if chosen.is_empty() || chosen.iter().any(has) {
            return names;
        }
        let placed = |id: &str| Placed {
            value: id.to_owned(),
            span: span.clone(),
        };
        let chosen = chosen.into_iter().map(placed).collect();
        self.replaced = names.into_iter().map(|name| name.value).collect();
        chosen
    }

    fn add(
        &mut self,
        dimension: &mut Dimension,
        name: &str,
        span: Range<usize>,
        setting: Option<Setting>,
    ) {
        if dimension.position(name).is_some() {
            let message = format!("`{}` has `{name}` twice", dimension.name);
            self.toml
                .problem(span, message, "two cells would have one name");
        } else {
            let name: Arc<str> = name.into();
            dimension
                .positions
                .insert(name.clone(), dimension.values.len());
            dimension.values.push(DimensionValue { name, setting });
        }
    }

    fn axis(&mut self, name: &Placed<String>, item: &Item<'_>) {
        let Some(table) = item.get_ref().as_table() else {
            let message = format!("the axis `{}` must be a table", name.value);
            return self.toml.problem_with_help(
                item.span(),
                message,
                "expected a table with `path` and `values`",
                AN_AXIS,
            );
        };
        self.toml.only_keys(table, "an axis", &["path", "values"]);
        let mut dimension = Dimension::new(&name.value);
        if BASE.contains(&name.value.as_str())
            || !is_plain_name(&name.value)
            || name.value.contains('=')
        {
            let message = format!("an axis cannot be called `{}`", name.value);
            return self
                .toml
                .problem(name.span.clone(), message, "the name means something else");
        }
        let written = table
            .get("path")
            .and_then(|item| self.toml.text(item, "path"));
        let values = table
            .get("values")
            .map(|item| self.toml.scalars(item, "values"));
        for (key, is_missing) in [
            ("path", !table.contains_key("path")),
            ("values", values.is_none()),
        ] {
            if is_missing {
                self.toml.problem(
                    name.span.clone(),
                    format!("axis `{}` has no `{key}`", name.value),
                    "expected one",
                );
            }
        }
        if let Some(written) = written {
            dimension.leaf = self.axis_leaf(&name.value, written);
            for value in values.into_iter().flatten() {
                self.axis_value(&mut dimension, value);
            }
        }
        dimension.product_len = dimension.values.len();
        self.dimensions.push(dimension);
    }

    fn axis_leaf(&mut self, axis: &str, written: Placed<String>) -> Option<Placed<Leaf>> {
        let leaf = match self.config.leaf(&written.value) {
            Ok(leaf) => Placed {
                value: leaf,
                span: written.span,
            },
            Err(problem) => {
                self.place(problem, written.span);
                return None;
            }
        };
        let path = &leaf.value.path;
        if !self.is_of_cell(path, &leaf.span) {
            return None;
        }
        if let Some((source, span)) = self.config.set_of(path) {
            let message = format!(
                "--set gives `{path}` one value, but the axis `{axis}` names cells after it"
            );
            let help = format!("select with --where {axis}=VALUE");
            self.toml.problems.push(
                Problem::new(message)
                    .at(source, span, "set by an axis")
                    .help(help),
            );
        }
        let is_same = |d: &&Dimension| {
            d.leaf
                .as_ref()
                .is_some_and(|l| overlap(&l.value.path, path))
        };
        if let Some(other) = self.dimensions.iter().find(is_same) {
            let message = format!("axes `{}` and `{axis}` both set `{path}`", other.name);
            self.toml
                .problem(leaf.span.clone(), message, "set by another axis");
        }
        Some(leaf)
    }

    /// Checks one value of an axis and adds it.
    fn axis_value(&mut self, dimension: &mut Dimension, value: Placed<Value>) -> Option<()> {
        let leaf = &dimension.leaf.as_ref()?.value;
        let (path, Placed { value, span }) = (leaf.path.clone(), self.accepted(leaf, value)?);
        let printed = print(&value);
        if !is_plain_name(&printed) {
            let message = format!("`{printed}` cannot stand in a cell's name");
            let mut help = "leave out spaces, quotes and / , @ # { } * ? [ ] !".to_owned();
            if let Some(table) = path.strip_suffix(".command") {
                help += &format!(
                    "; for several commands, let the axis set a variable (`path = \"{table}.env.VARIANT\"`) that the trainer's \
                     script reads"
                );
            }
            self.toml
                .problem_with_help(span, message, "not a plain value", &help);
            return None;
        }
        let origin = Origin::Matrix {
            source: self.toml.source.clone(),
            span: span.clone(),
        };
        self.add(
            dimension,
            &printed,
            span,
            Some(Setting {
                path,
                value,
                origin,
            }),
        );
        Some(())
    }

    fn accepted(&mut self, leaf: &Leaf, value: Placed<Value>) -> Option<Placed<Value>> {
        match leaf.accept(value.value) {
            Ok(accepted) => Some(Placed {
                value: accepted,
                span: value.span,
            }),
            Err(problem) => {
                self.place(problem, value.span);
                None
            }
        }
    }

    pub fn typed(&mut self, path: &str, value: Placed<Value>) -> Option<Vec<(Arc<str>, Value)>> {
        match self.config.typed(path, value.value) {
            Ok(leaves) => Some(leaves),
            Err(problem) => {
                self.place(problem, value.span);
                None
            }
        }
    }

    /// Is the path a setting that cells read? If not, that is a problem.
    pub fn is_of_cell(&mut self, path: &str, span: &Range<usize>) -> bool {
        let framework = path
            .strip_prefix("frameworks.")
            .and_then(|rest| rest.split('.').next())
            .filter(|id| !self.recipes.contains(id));
        let problem = match framework {
            None => not_of_cell(path),
            Some(id) => {
                let known = self.recipes.iter().copied();
                let help = did_you_mean(id, known.clone()).unwrap_or_else(|| {
                    format!("there are {}", known.collect::<Vec<_>>().join(", "))
                });
                let mut problem = Problem::new(format!("there is no framework `{id}`"));
                problem.label = "no recipe has this name".to_owned();
                Some(problem.help(help))
            }
        };
        let is_of_cell = problem.is_none();
        if let Some(problem) = problem {
            self.place(problem, span.clone());
        }
        is_of_cell
    }

    pub fn place(&mut self, mut problem: Problem, span: Range<usize>) {
        problem.place = Some((self.toml.source.clone(), span));
        self.toml.problems.push(problem);
    }

    fn includes(&mut self, root: &DeTable<'_>) -> Vec<Placed<Vec<Option<usize>>>> {
        let mut includes = Vec::new();
        for table in self.toml.tables(root, "include") {
            let known: Vec<String> = self.dimensions.iter().map(|d| d.name.to_string()).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            self.toml.only_keys(table.value, "[[include]]", &known);
            let mut dimensions = std::mem::take(&mut self.dimensions);
            let point = dimensions
                .iter_mut()
                .map(|d| self.included(d, &table))
                .collect();
            self.dimensions = dimensions;
            includes.push(Placed {
                value: point,
                span: table.span,
            });
        }
        includes
    }

    /// The index of an included cell's value; one that the product lacks joins the dimension.
    fn included(
        &mut self,
        dimension: &mut Dimension,
        table: &Placed<&DeTable<'_>>,
    ) -> Option<usize> {
        let name = dimension.name.clone();
        let Some(item) = table.value.get(&*name) else {
            if BASE.contains(&&*name) {
                self.toml.problem(
                    table.span.clone(),
                    format!("[[include]] has no `{name}`"),
                    "expected one",
                );
            }
            return None;
        };
        if let Some(leaf) = dimension.leaf.as_ref().map(|leaf| leaf.value.clone()) {
            let value = self.toml.scalar(item, &name)?;
            let value = self.accepted(&leaf, value)?;
            let printed = print(&value.value);
            if dimension.position(&printed).is_none() {
                self.axis_value(dimension, value)?;
            }
            return dimension.position(&printed);
        }
        let written = self.toml.text(item, &name)?;
        let id = self.base_name(&name, &written)?;
        if dimension.position(&id).is_none() {
            self.add(dimension, &id, written.span, None);
        }
        dimension.position(&id)
    }
}

/// Is one path the other, or above it?
pub(super) fn overlap(a: &str, b: &str) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    long.strip_prefix(short)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
