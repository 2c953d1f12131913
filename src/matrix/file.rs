//! What a matrix file says, read and checked against the config, before it is multiplied out.

use std::{ops::Range, sync::Arc};

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::read::{At, Item, Reader, in_file_order, json, print};
use crate::{
    config::{Config, Origin, Setting, framework_named, framework_names, is_plain_name},
    error::{Problem, Source, nearest},
};

/// The dimensions that every cell has, in the order of its name.
pub(super) const BASE: [&str; 4] = ["platform", "framework", "model", "parallelism"];
const MAX_REPEATS: i64 = 10_000;

/// One dimension of the product: one of [`BASE`], or an axis that sets a path of the config.
#[derive(Debug)]
pub(super) struct Dimension {
    pub name: Arc<str>,
    /// What cells of the product may be here, then what only included cells are.
    pub values: Vec<DimensionValue>,
    pub product_len: usize,
    /// Of an axis.
    pub path: Option<At<Arc<str>>>,
}

#[derive(Debug)]
pub(super) struct DimensionValue {
    pub name: Arc<str>,
    pub span: Range<usize>,
    pub setting: Option<Setting>,
}

impl Dimension {
    fn position(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|value| &*value.name == name)
    }
    fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| &*value.name)
    }
}

/// For some dimensions, which of their values are meant.
#[derive(Debug, Default)]
pub(super) struct Where(Vec<(usize, Vec<bool>)>);

impl Where {
    /// `point`: the index of the value on each dimension, none where an included cell has none.
    pub fn matches(&self, point: &[Option<usize>]) -> bool {
        self.0.iter().all(|(dimension, wanted)| point[*dimension].is_some_and(|value| wanted[value]))
    }
}

#[derive(Debug)]
pub(super) struct MatrixFile {
    pub name: String,
    pub repeats: u32,
    pub dimensions: Vec<Dimension>,
    pub excludes: Vec<(Where, String)>,
    pub overrides: Vec<(Where, Vec<Setting>)>,
    pub includes: Vec<At<Vec<Option<usize>>>>,
}

struct FileReader<'a> {
    toml: Reader<'a>,
    config: &'a Config,
    recipes: &'a [&'a str],
    auto_platform: Option<&'a str>,
    dimensions: Vec<Dimension>,
}

impl MatrixFile {
    pub fn read(
        source: &Arc<Source>,
        config: &Config,
        recipes: &[&str],
        auto_platform: Option<&str>,
    ) -> Result<Self, Vec<Problem>> {
        let (root, errors) = DeTable::parse_recoverable(&source.text);
        if !errors.is_empty() {
            let problem = |error: toml::de::Error| {
                let message = format!("not TOML: {}", error.message().replace('\n', ", "));
                Problem::new(message).at(source, error.span().unwrap_or(0..0), "here")
            };
            return Err(errors.into_iter().map(problem).collect());
        }
        let toml = Reader { source, problems: Vec::new() };
        let mut reader = FileReader { toml, config, recipes, auto_platform, dimensions: Vec::new() };
        let file = reader.file(root.get_ref());
        if reader.toml.problems.is_empty() { Ok(file) } else { Err(reader.toml.problems) }
    }
}

impl FileReader<'_> {
    fn file(&mut self, root: &DeTable<'_>) -> MatrixFile {
        self.toml.only_keys(root, "a matrix file", &["matrix", "exclude", "override", "include"]);
        let (name, repeats) = self.head(root);
        let includes = self.includes(root);
        MatrixFile {
            name,
            repeats,
            excludes: self.excludes(root),
            overrides: self.overrides(root),
            includes,
            dimensions: std::mem::take(&mut self.dimensions),
        }
    }

    /// `[matrix]` and its axes: fills `dimensions`.
    fn head(&mut self, root: &DeTable<'_>) -> (String, u32) {
        let stem = self.toml.source.name.rsplit('/').next().unwrap_or("").trim_end_matches(".toml").to_owned();
        let empty = DeTable::new();
        let matrix = match root.get("matrix") {
            Some(item) => self.toml.table(item, "matrix").unwrap_or(&empty),
            None => {
                self.toml.problem_with_help(0..0, "there is no [matrix]", "", "a file begins with [matrix]");
                &empty
            }
        };
        let known = ["name", "platform", "framework", "model", "parallelism", "repeats", "axes"];
        self.toml.only_keys(matrix, "[matrix]", &known);
        for base in BASE {
            self.base_dimension(matrix, base, root.get("matrix").map(toml::Spanned::span));
        }
        if let Some(axes) = matrix.get("axes").and_then(|item| self.toml.table(item, "matrix.axes")) {
            for (name, item) in in_file_order(axes) {
                self.axis(&name, item);
            }
        }
        let name = matrix.get("name").and_then(|item| self.toml.text(item, "name")).map_or(stem, |name| name.value);
        (name, self.repeats(matrix))
    }

    fn repeats(&mut self, matrix: &DeTable<'_>) -> u32 {
        let default = self.config.get("benchmarking.runs.default_num_runs").and_then(Value::as_u64);
        let default = default.and_then(|runs| u32::try_from(runs).ok()).unwrap_or(1);
        let Some(item) = matrix.get("repeats") else { return default };
        match json(item.get_ref()).ok().and_then(|value| value.as_i64()).filter(|n| (1..=MAX_REPEATS).contains(n)) {
            Some(repeats) => u32::try_from(repeats).unwrap_or(default),
            None => {
                let wanted = format!("a whole number from 1 to {MAX_REPEATS}");
                self.toml.problem(
                    item.span(),
                    format!("`repeats` must be {wanted}"),
                    format!("{wanted} is wanted here"),
                );
                default
            }
        }
    }

    fn base_dimension(&mut self, matrix: &DeTable<'_>, base: &str, head: Option<Range<usize>>) {
        let names = match matrix.get(base) {
            Some(item) => self.toml.texts(item, base),
            None => {
                if let Some(head) = head {
                    self.toml.problem(head, format!("[matrix] has no `{base}`"), "one is wanted");
                }
                Vec::new()
            }
        };
        let mut dimension = Dimension { name: base.into(), values: Vec::new(), product_len: 0, path: None };
        for written in names {
            let Some(id) = self.base_name(base, &written) else { continue };
            self.add(&mut dimension, &id, written.span, None);
        }
        dimension.product_len = dimension.values.len();
        self.dimensions.push(dimension);
    }

    fn add(&mut self, dimension: &mut Dimension, name: &str, span: Range<usize>, setting: Option<Setting>) {
        if dimension.position(name).is_some() {
            let message = format!("`{}` has `{name}` twice", dimension.name);
            self.toml.problem(span, message, "two cells would have one name");
        } else {
            dimension.values.push(DimensionValue { name: name.into(), span, setting });
        }
    }

    /// The id that a written platform, framework, model or strategy stands for.
    fn base_name(&mut self, base: &str, written: &At<String>) -> Option<String> {
        let name = written.value.as_str();
        let (config, recipes) = (self.config, self.recipes);
        let table = match base {
            "platform" => return self.platform(written),
            "framework" => "frameworks",
            "model" => "models",
            _ => "parallelism",
        };
        let is_known =
            |id: &&str| config.children(table).any(|known| known == *id) || base == "framework" && recipes.contains(id);
        let alias = if base == "framework" { framework_named(name) } else { None };
        if let Some(id) = Some(name).filter(is_known).or(alias.filter(is_known)) {
            return Some(id.to_owned());
        }
        let mut known: Vec<&str> = config.children(table).collect();
        if base == "framework" {
            known.extend(recipes);
            let long: Vec<&str> = known.iter().flat_map(|id| framework_names(id)).copied().collect();
            known.extend(long);
        }
        self.unknown(base, written, &known, &format!("declare it under `{table}` in {}", config.source_name()));
        None
    }

    fn platform(&mut self, written: &At<String>) -> Option<String> {
        let config = self.config;
        let name = match (written.value.as_str(), self.auto_platform) {
            ("auto", Some(name)) => name,
            ("auto", None) => {
                let message = "this host's platform is not known";
                self.toml.problem_with_help(written.span.clone(), message, "cannot be resolved", "name a platform");
                return None;
            }
            (name, _) => name,
        };
        match config.platforms_named(name)[..] {
            [id] => return Some(id.to_owned()),
            [] => {
                let known: Vec<&str> = config.children("hardware.platforms").collect();
                let otherwise = format!("declare it under `hardware.platforms` in {}", config.source_name());
                let named = At { value: name.to_owned(), span: written.span.clone() };
                self.unknown("platform", &named, &known, &otherwise);
            }
            ref ids => {
                let message = format!("platform `{name}` may be any of {}", ids.join(", "));
                self.toml.problem_with_help(written.span.clone(), message, "which one?", "name it by its id");
            }
        }
        None
    }

    fn unknown(&mut self, what: &str, written: &At<String>, known: &[&str], otherwise: &str) {
        let help = nearest(&written.value, known.iter().copied())
            .map_or_else(|| otherwise.to_owned(), |near| format!("did you mean `{near}`?"));
        let what = if what == "parallelism" { "strategy" } else { what };
        let message = format!("unknown {what} `{}`", written.value);
        self.toml.problem_with_help(written.span.clone(), message, format!("no {what} is called so"), help);
    }

    fn axis(&mut self, name: &At<String>, item: &Item<'_>) {
        let Some(table) = self.toml.table(item, &name.value) else { return };
        self.toml.only_keys(table, "an axis", &["path", "values"]);
        let mut dimension =
            Dimension { name: name.value.as_str().into(), values: Vec::new(), product_len: 0, path: None };
        if BASE.contains(&name.value.as_str()) || !is_plain_name(&name.value) || name.value.contains('=') {
            let message = format!("an axis cannot be called `{}`", name.value);
            return self.toml.problem(name.span.clone(), message, "the name means something else");
        }
        let written = table.get("path").and_then(|item| self.toml.text(item, "path"));
        let values = table.get("values").map(|item| self.toml.scalars(item, "values"));
        for (key, is_missing) in [("path", !table.contains_key("path")), ("values", values.is_none())] {
            if is_missing {
                self.toml.problem(name.span.clone(), format!("axis `{}` has no `{key}`", name.value), "one is wanted");
            }
        }
        if let Some(written) = written {
            dimension.path = self.axis_path(&name.value, written);
            for value in values.into_iter().flatten() {
                self.axis_value(&mut dimension, value);
            }
        }
        dimension.product_len = dimension.values.len();
        self.dimensions.push(dimension);
    }

    fn axis_path(&mut self, axis: &str, written: At<String>) -> Option<At<Arc<str>>> {
        let path = match self.config.resolve(&written.value) {
            Ok(path) => At { value: path, span: written.span },
            Err(problem) => {
                self.place(problem, written.span);
                return None;
            }
        };
        if let Some((source, span)) = self.config.set_of(&path.value) {
            let message = format!("--set of `{}`, which the axis `{axis}` sets: its labels would lie", path.value);
            let help = format!("select with --where {axis}=VALUE");
            self.toml.problems.push(Problem::new(message).at(source, span, "set by an axis").help(help));
        }
        let other = self.dimensions.iter().find(|d| d.path.as_ref().is_some_and(|p| overlap(&p.value, &path.value)));
        if let Some(other) = other {
            let message = format!("axes `{}` and `{axis}` both set `{}`", other.name, path.value);
            self.toml.problem(path.span.clone(), message, "set by another axis");
        }
        Some(path)
    }

    /// Checks one value of an axis and gives its index; it may be new or known.
    fn axis_value(&mut self, dimension: &mut Dimension, value: At<Value>) -> Option<usize> {
        let path = dimension.path.as_ref()?.value.clone();
        let span = value.span.clone();
        let [(path, value)] = &self.typed(&path, value)?[..] else { return None };
        let printed = print(value);
        if !is_plain_name(&printed) {
            let message = format!("`{printed}` cannot stand in a cell's name");
            let help = "leave out spaces, quotes and / , @ # { } * ? [ ] !";
            self.toml.problem_with_help(span, message, "not a plain value", help);
            return None;
        }
        let origin = Origin::Matrix { source: self.toml.source.clone(), span: span.clone() };
        let setting = Setting { path: path.clone(), value: value.clone(), origin };
        self.add(dimension, &printed, span, Some(setting));
        dimension.position(&printed)
    }

    fn typed(&mut self, path: &str, value: At<Value>) -> Option<Vec<(Arc<str>, Value)>> {
        match self.config.typed(path, value.value) {
            Ok(leaves) => Some(leaves),
            Err(problem) => {
                self.place(problem, value.span);
                None
            }
        }
    }

    fn place(&mut self, mut problem: Problem, span: Range<usize>) {
        problem.place = Some((self.toml.source.clone(), span));
        self.toml.problems.push(problem);
    }

    fn includes(&mut self, root: &DeTable<'_>) -> Vec<At<Vec<Option<usize>>>> {
        let mut includes = Vec::new();
        for table in self.toml.tables(root, "include") {
            let known: Vec<String> = self.dimensions.iter().map(|d| d.name.to_string()).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            self.toml.only_keys(table.value, "[[include]]", &known);
            let mut dimensions = std::mem::take(&mut self.dimensions);
            let point = dimensions.iter_mut().map(|d| self.included(d, &table)).collect();
            self.dimensions = dimensions;
            includes.push(At { value: point, span: table.span });
        }
        includes
    }

    /// The index of an included cell's value; one that the product lacks joins the dimension.
    fn included(&mut self, dimension: &mut Dimension, table: &At<&DeTable<'_>>) -> Option<usize> {
        let name = dimension.name.clone();
        let Some(item) = table.value.get(&*name) else {
            if BASE.contains(&&*name) {
                self.toml.problem(table.span.clone(), format!("[[include]] has no `{name}`"), "one is wanted");
            }
            return None;
        };
        if let Some(path) = dimension.path.as_ref().map(|path| path.value.clone()) {
            let value = self.toml.scalar(item, &name)?;
            let [(_, typed)] = &self.typed(&path, value.clone())?[..] else { return None };
            return match dimension.position(&print(typed)) {
                Some(known) => Some(known),
                None => self.axis_value(dimension, value),
            };
        }
        let written = self.toml.text(item, &name)?;
        let id = self.base_name(&name, &written)?;
        if dimension.position(&id).is_none() {
            self.add(dimension, &id, written.span, None);
        }
        dimension.position(&id)
    }

    fn excludes(&mut self, root: &DeTable<'_>) -> Vec<(Where, String)> {
        let mut excludes = Vec::new();
        for table in self.toml.tables(root, "exclude") {
            self.toml.only_keys(table.value, "[[exclude]]", &["where", "reason"]);
            let place = self.wanted_where(&table, "[[exclude]]");
            let reason = table.value.get("reason").and_then(|item| self.toml.text(item, "reason"));
            if !table.value.contains_key("reason") {
                self.toml.problem(table.span.clone(), "[[exclude]] has no `reason`", "say why");
            }
            excludes.push((place, reason.map_or_else(String::new, |reason| reason.value)));
        }
        excludes
    }

    fn overrides(&mut self, root: &DeTable<'_>) -> Vec<(Where, Vec<Setting>)> {
        let mut overrides = Vec::new();
        for table in self.toml.tables(root, "override") {
            self.toml.only_keys(table.value, "[[override]]", &["where", "set"]);
            let place = self.wanted_where(&table, "[[override]]");
            let mut settings = Vec::new();
            match table.value.get("set") {
                Some(item) => {
                    if let Some(set) = self.toml.table(item, "set") {
                        self.settings(set, "", &mut settings);
                    }
                }
                None => self.toml.problem(table.span.clone(), "[[override]] has no `set`", "nothing is overridden"),
            }
            overrides.push((place, settings));
        }
        overrides
    }

    /// `"a.b" = 1` and `a.b = 1` alike: the leaves of nested tables, each with its own place.
    fn settings(&mut self, table: &DeTable<'_>, above: &str, settings: &mut Vec<Setting>) {
        for (key, item) in in_file_order(table) {
            let path = if above.is_empty() { key.value } else { format!("{above}.{}", key.value) };
            if let DeValue::Table(table) = item.get_ref() {
                self.settings(table, &path, settings);
                continue;
            }
            if let Err(problem) = self.config.resolve(&path) {
                self.place(problem, key.span);
                continue;
            }
            let value = match json(item.get_ref()) {
                Ok(value) => At { value, span: item.span() },
                Err(why) => {
                    self.toml.problem(item.span(), format!("`{path}` {why}"), why);
                    continue;
                }
            };
            for (path, value) in self.typed(&path, value).into_iter().flatten() {
                let axis = self.dimensions.iter().find(|d| d.path.as_ref().is_some_and(|p| overlap(&p.value, &path)));
                if let Some(axis) = axis {
                    let message = format!(
                        "the override sets `{path}`, which the axis `{}` sets: its labels would lie",
                        axis.name
                    );
                    let help = "leave it to the axis, or give the axis another value";
                    self.toml.problem_with_help(key.span.clone(), message, "set by an axis", help);
                }
                let origin = Origin::Matrix { source: self.toml.source.clone(), span: item.span() };
                settings.push(Setting { path, value, origin });
            }
        }
    }

    fn wanted_where(&mut self, table: &At<&DeTable<'_>>, place: &str) -> Where {
        let Some(item) = table.value.get("where") else {
            self.toml.problem(table.span.clone(), format!("{place} has no `where`"), "of which cells?");
            return Where::default();
        };
        let Some(conditions) = self.toml.table(item, "where") else { return Where::default() };
        let mut found = Where::default();
        for (key, item) in in_file_order(conditions) {
            let Some(index) = self.dimensions.iter().position(|d| *d.name == *key.value) else {
                let known: Vec<&str> = self.dimensions.iter().map(|d| &*d.name).collect();
                let help = nearest(&key.value, known.iter().copied()).map_or_else(
                    || format!("there are {}", known.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                let message = format!("`where` names an unknown axis `{}`", key.value);
                self.toml.problem_with_help(key.span, message, "no axis is called so", help);
                continue;
            };
            let mut wanted = vec![false; self.dimensions[index].values.len()];
            for value in self.toml.scalars(item, &key.value) {
                if let Some(position) = self.where_value(index, &value) {
                    wanted[position] = true;
                }
            }
            found.0.push((index, wanted));
        }
        found
    }

    fn where_value(&mut self, dimension: usize, value: &At<Value>) -> Option<usize> {
        let dimension = &self.dimensions[dimension];
        let printed = match &dimension.path {
            Some(path) => match self.config.typed(&path.value, value.value.clone()).as_deref() {
                Ok([(_, typed)]) => print(typed),
                _ => print(&value.value),
            },
            None => print(&value.value),
        };
        let alias = match &*dimension.name {
            "platform" => match self.config.platforms_named(&printed)[..] {
                [id] => Some(id),
                _ => None,
            },
            "framework" => framework_named(&printed),
            _ => None,
        };
        let found = dimension.position(&printed).or_else(|| dimension.position(alias?));
        // A dimension that is empty has its own problem already.
        if found.is_none() && !dimension.values.is_empty() {
            let help = nearest(&printed, dimension.names()).map_or_else(
                || format!("there are {}", dimension.names().collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            let message = format!("no cell has the {} `{printed}`", dimension.name);
            self.toml.problem_with_help(value.span.clone(), message, "matches nothing", help);
        }
        found
    }
}

/// Is one path the other, or above it?
fn overlap(a: &str, b: &str) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
