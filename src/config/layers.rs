//! [`Config`]: the effective values of config.yaml, the environment and `--set`, and where each of
//! them comes from.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use super::{
    environment::VARIABLES,
    names::vendor_named,
    nested::{self, fill, join},
    places::{Place, Places},
    schema::ConfigFile,
    shape::Shape,
};
use crate::{
    error::{Problem, Source},
    job::Vendor,
    words::secret::{SECRET, public_value},
};

/// Where an effective value comes from; weakest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// The built-in table of models, or a Hugging Face config.json.
    Model(String),
    File {
        source: Arc<Source>,
        span: Range<usize>,
    },
    /// This variable.
    Environment(String),
    /// An axis or an override.
    Matrix {
        source: Arc<Source>,
        span: Range<usize>,
    },
    /// `--set`.
    Set,
    /// A default of this recipe.
    Recipe(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("built in"),
            Self::Model(name) => f.write_str(name),
            Self::File { source, span } | Self::Matrix { source, span } => {
                let place = Problem::new("").at(source, span.clone(), "");
                match place.position() {
                    Some((file, line, column)) => write!(f, "{file}:{line}:{column}"),
                    None => f.write_str(&source.name),
                }
            }
            Self::Environment(variable) => write!(f, "${variable}"),
            Self::Set => f.write_str("--set"),
            Self::Recipe(id) => write!(f, "recipe {id}"),
        }
    }
}

/// Which layer a value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Default,
    /// A default of the cell's recipe.
    Recipe,
    /// Index into `model_sources`.
    Model(usize),
    File,
    /// Index into [`VARIABLES`].
    Environment(usize),
    /// Index into a view's settings.
    Matrix(usize),
    /// Index into `sets`.
    Set(usize),
}

/// Of two layers the greater one counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    Default,
    File,
    Environment,
    Matrix,
    Set,
}

impl Layer {
    pub fn strength(self) -> Strength {
        match self {
            Self::Default | Self::Recipe | Self::Model(_) => Strength::Default,
            Self::File => Strength::File,
            Self::Environment(_) => Strength::Environment,
            Self::Matrix(_) => Strength::Matrix,
            Self::Set(_) => Strength::Set,
        }
    }
}

/// config.yaml with the environment and `--set` above it and the built-in defaults below.
#[derive(Debug)]
pub struct Config {
    pub(super) source: Arc<Source>,
    /// The effective values, nested; what is no table is a value.
    pub(super) values: Value,
    /// The layer of each value by its path; none for built-in defaults.
    pub(super) layers: HashMap<String, Layer>,
    /// Paths that the file spells with an alias (`max_steps`, `TP`).
    pub(super) spelled: HashMap<String, String>,
    places: OnceLock<Places>,
    /// `VARIABLE=text`, by index into [`VARIABLES`].
    pub(super) environment: [Option<Arc<Source>>; VARIABLES.len()],
    /// `PATH=VALUE`, as given.
    pub(super) sets: Vec<Arc<Source>>,
    /// What a reader should know of how the file was understood; nothing is wrong.
    pub(super) notes: Vec<Problem>,
    /// Models named like a built-in one that is of another shape, and how it differs.
    pub(super) unlike: Vec<(String, Problem)>,
    /// Variables that texts of the file name as `${NAME}`.
    pub(super) variables: BTreeSet<String>,
    /// Where shapes of models come from that the file does not state.
    pub(super) model_sources: Vec<String>,
    /// Where the file is wrong.
    pub(super) faulty: Vec<Range<usize>>,
    /// Paths whose values in the file are wrong. What is computed without them is not judged.
    pub(super) left_out: Vec<String>,
    /// See [`Config::settings`].
    pub(super) settings: ConfigFile,
}

impl Config {
    /// Without any value.
    pub(super) fn empty(source: Arc<Source>, sets: &[String]) -> Self {
        Self {
            source,
            values: Value::Object(serde_json::Map::new()),
            layers: HashMap::new(),
            spelled: HashMap::new(),
            places: OnceLock::new(),
            environment: std::array::from_fn(|_| None),
            sets: sets.iter().map(|set| Source::new("--set", set)).collect(),
            notes: Vec::new(),
            unlike: Vec::new(),
            variables: BTreeSet::new(),
            model_sources: Vec::new(),
            faulty: Vec::new(),
            left_out: Vec::new(),
            settings: ConfigFile::default(),
        }
    }

    /// What holds for all cells: the file, the environment and `--set`, without a matrix and
    /// without recipes.
    #[must_use]
    pub fn settings(&self) -> &ConfigFile {
        &self.settings
    }

    pub(super) fn fill_settings(&mut self) {
        self.settings = fill(Some(self.values.clone()));
    }

    /// Gives the path of `keys` a value of a layer, in place of all that is there.
    pub(super) fn set(&mut self, keys: &[impl AsRef<str>], value: Value, layer: Layer) {
        let path = keys
            .iter()
            .fold(String::new(), |path, key| join(&path, key.as_ref()));
        self.forget(&path);
        self.layers.insert(path, layer);
        nested::put(&mut self.values, keys, value);
    }

    /// Forgets where the values at and below a path come from.
    pub(super) fn forget(&mut self, path: &str) {
        let is_below = |other: &str| {
            let rest = other.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.layers.retain(|other, _| !is_below(other));
    }

    /// Is something wrong in the table that would hold `path`? Then it may be there, misspelt, and
    /// is not said to be missing.
    #[must_use]
    pub fn is_faulty_around(&self, path: &str) -> bool {
        if self.faulty.is_empty() {
            return false;
        }
        // One model is often made from another by an anchor, whose mistakes it shares.
        let mut above = if path.starts_with("models.") {
            "models.any"
        } else {
            path
        };
        let table = loop {
            match above.rsplit_once('.') {
                None => break 0..self.source.text.len(),
                Some((table, _)) => above = table,
            }
            if let Some(place) = self.place(above) {
                break place.key.start..place.value.end;
            }
        };
        self.faulty
            .iter()
            .any(|span| table.start <= span.start && span.end <= table.end)
    }

    /// Variables of the caller that config.yaml names: what they hold is a part of the
    /// configuration.
    #[must_use]
    pub fn variables(&self) -> &BTreeSet<String> {
        &self.variables
    }

    /// How keys of the file were understood, where that is worth a word; each with its place.
    #[must_use]
    pub fn notes(&self) -> &[Problem] {
        &self.notes
    }

    /// Keys that somebody states and that change nothing, without the texts for people.
    #[must_use]
    pub fn descriptive(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.add_descriptive("", &self.values, Shape::root(), &mut found);
        found
    }

    fn add_descriptive(&self, path: &str, value: &Value, shape: Shape, found: &mut Vec<String>) {
        if let Some(why) = shape.descriptive() {
            let is_stated = value.is_object() || self.is_stated(path);
            if is_stated && why != "a text for people" && self.place(path).is_some() {
                found.push(path.to_owned());
            }
            return;
        }
        for (key, value) in value.as_object().into_iter().flatten() {
            if let Some((_, shape)) = shape.field(key) {
                self.add_descriptive(&join(path, key), value, shape, found);
            }
        }
    }

    /// The name that problems call the file by.
    #[must_use]
    pub fn source_name(&self) -> &str {
        &self.source.name
    }

    /// The folder of a project's measurements.
    #[must_use]
    pub fn cache_dir(&self, root: &Path) -> PathBuf {
        root.join(&self.settings.paths.cache)
    }

    /// The folder that a project publishes to.
    #[must_use]
    pub fn output_dir(&self, root: &Path) -> PathBuf {
        root.join(&self.settings.paths.output)
    }

    /// The effective value of a dotted path; none for tables and for what nobody states.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        nested::leaf(&self.values, path)
    }

    /// The layer of a path that holds a value.
    pub(super) fn layer(&self, path: &str) -> Layer {
        self.layers.get(path).copied().unwrap_or(Layer::Default)
    }

    /// Does somebody state the value of a path, rather than leave it to a default?
    pub(super) fn is_stated(&self, path: &str) -> bool {
        self.layer(path).strength() > Strength::Default
    }

    /// Where the value of a path comes from, which no matrix and no recipe states.
    pub(super) fn origin(&self, path: &str) -> Origin {
        match self.layer(path) {
            Layer::Default | Layer::Recipe | Layer::Matrix(_) => Origin::Default,
            Layer::Model(index) => Origin::Model(self.model_sources[index].clone()),
            Layer::File => Origin::File {
                source: self.source.clone(),
                span: self.nearest_span(path),
            },
            Layer::Environment(index) => Origin::Environment(VARIABLES[index].0.to_owned()),
            Layer::Set(_) => Origin::Set,
        }
    }

    /// The keys below `path` in file order; the ids, where it is `models`, `hardware.platforms` or
    /// `parallelism`.
    pub fn children(&self, path: &str) -> impl Iterator<Item = &str> {
        nested::keys(self.find(path))
    }

    /// The value or table of a path.
    pub(super) fn find(&self, path: &str) -> Option<&Value> {
        nested::find(&self.values, path)
    }

    /// Is there such a value or table?
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// Every effective value in file order.
    pub fn effective(&self) -> impl Iterator<Item = (String, &Value, Origin)> {
        let leaves = nested::leaves(&self.values).into_iter();
        leaves.map(move |(path, value)| {
            let origin = self.origin(&path);
            (path, value, origin)
        })
    }

    /// A problem at the value of `path`, wherever that was given; at the nearest parent's key where
    /// it was not.
    #[must_use]
    pub fn problem_at(
        &self,
        path: &str,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Problem {
        let given = match self.layer(path) {
            Layer::Environment(index) => self.environment[index].as_ref(),
            Layer::Set(index) => self.sets.get(index),
            _ => None,
        };
        match given {
            Some(source) => Problem::new(message).at(source, after_equals(source), label),
            None => Problem::new(message).at(&self.source, self.nearest_span(path), label),
        }
    }

    /// A problem at the key of a path.
    pub(super) fn problem_at_key(
        &self,
        path: &str,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Problem {
        if let Some(place) = self.place(path) {
            return Problem::new(message).at(&self.source, place.key.clone(), label);
        }
        // A key that a `--set` made: its first value says where.
        let first = self.children(path).next();
        let made = first.map_or_else(|| path.to_owned(), |key| join(path, key));
        self.problem_at(&made, message, label)
    }

    pub(super) fn places(&self) -> &Places {
        self.places.get_or_init(|| Places::of(&self.source.text))
    }

    /// Where the file spells `path`, if it does.
    pub(super) fn place(&self, path: &str) -> Option<&Place> {
        self.places()
            .find(self.spelled.get(path).map_or(path, String::as_str))
    }

    /// Declared variables of runs that have the name of a secret and a value that stands in
    /// config.yaml: such a value is in no key, and a setting of that name would be believed to be
    /// measured.
    #[must_use]
    pub fn literal_secrets(&self) -> Vec<String> {
        let mut found = Vec::new();
        for table in ["hardware.platforms", "frameworks"] {
            for id in self.children(table) {
                let env = format!("{table}.{id}.env");
                for name in self.children(&env) {
                    let path = format!("{env}.{name}");
                    let value = self.get(&path).map(super::names::plain).unwrap_or_default();
                    let is_written = || {
                        let span = self.place(&path).map_or(0..0, |place| place.value.clone());
                        !self
                            .source
                            .text
                            .get(span)
                            .unwrap_or_default()
                            .contains("${")
                    };
                    if public_value(name, &value) == SECRET && is_written() {
                        found.push(path);
                    }
                }
            }
        }
        found
    }

    /// The bytes of the value of `path` in config.yaml, or of the key of the nearest table above
    /// it.
    pub(super) fn nearest_span(&self, path: &str) -> Range<usize> {
        let mut path = path;
        loop {
            if let Some(place) = self.place(path) {
                return place.caret();
            }
            match path.rsplit_once('.') {
                Some((parent, _)) => path = parent,
                None => return 0..0,
            }
        }
    }

    /// Stated, or told by the platform's id.
    #[must_use]
    pub fn vendor(&self, platform: &str) -> Option<Vendor> {
        let stated = self
            .get(&format!("hardware.platforms.{platform}.vendor"))
            .and_then(Value::as_str);
        vendor_named(stated.unwrap_or(platform))
    }

    /// The platforms that `name` may mean: the one of that id, else those of the vendor of that
    /// name.
    #[must_use]
    pub fn platforms_named(&self, name: &str) -> Vec<&str> {
        let ids = || self.children("hardware.platforms");
        if let Some(id) = ids().find(|id| *id == name) {
            return vec![id];
        }
        let Some(vendor) = vendor_named(name) else {
            return Vec::new();
        };
        let shipped =
            ids().find(|id| vendor_named(id) == Some(vendor) && self.vendor(id) == Some(vendor));
        shipped.map_or_else(
            || ids().filter(|id| self.vendor(id) == Some(vendor)).collect(),
            |id| vec![id],
        )
    }
}

/// The value in `NAME=value`.
pub(super) fn after_equals(source: &Source) -> Range<usize> {
    source.text.find('=').map_or(0, |at| at + 1)..source.text.len()
}
