//! [`Config`]: file < environment < `--set`, merged once, so that a look-up is one hash.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, OnceLock},
};

use serde_json::Value;

use super::{
    VARIABLES, check, known_models,
    read::ConfigReader,
    resolve::{self, Leaf},
    schema::ConfigFile,
    shape::shapes,
    spans::{Place, Spans},
    tree::{NodeId, ROOT, Tree},
    upgrade::Translation,
    vendor_named,
    view::{Setting, Values, View},
};
use crate::{
    error::{Error, Problem, Result, Source},
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

/// Which layer a value of the tree is from; weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    Default,
    /// Index into `model_sources`.
    Model(usize),
    File,
    /// Index into [`VARIABLES`].
    Environment(usize),
    /// Index into `sets`.
    Set(usize),
}

/// config.yaml with the environment and `--set` above it and the built-in defaults below.
#[derive(Debug)]
pub struct Config {
    pub(super) source: Arc<Source>,
    pub(super) tree: Tree<Layer>,
    /// Paths that the file spells with an alias (`max_steps`, `TP`).
    pub(super) spelled: HashMap<Arc<str>, String>,
    spans: OnceLock<Spans>,
    /// `VARIABLE=text`, by index into [`VARIABLES`].
    environment: [Option<Arc<Source>>; VARIABLES.len()],
    /// `PATH=VALUE`, as given.
    sets: Vec<Arc<Source>>,
    /// What a reader should know of how the file was understood; nothing is wrong.
    pub(super) notes: Vec<Problem>,
    /// Models named like a built-in one that is of another shape, and how it differs.
    pub(super) unlike: Vec<(String, Problem)>,
    /// Variables that texts of the file name as `${NAME}`.
    pub(super) variables: BTreeSet<String>,
    /// Where shapes of models come from that the file does not state.
    pub(super) model_sources: Vec<String>,
    /// Keys of older suites that the file has.
    pub(super) translations: Vec<Translation>,
    /// Where the file is wrong.
    faulty: Vec<Range<usize>>,
    /// Paths whose values in the file are wrong. What is computed without them is not judged.
    pub(super) left_out: Vec<Arc<str>>,
    /// See [`Config::settings`].
    pub(super) settings: ConfigFile,
}

impl Config {
    /// `env` is the process environment, handed in so that loading is a pure function. `sets`:
    /// `PATH=VALUE`, VALUE in YAML.
    pub fn load(
        source: Arc<Source>,
        env: &BTreeMap<String, String>,
        sets: &[String],
    ) -> Result<Self> {
        match Self::read(source, env, sets) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(Error::Invalid(problems)),
        }
    }

    /// Like [`Config::load`], but keeps what is right beside all that is wrong, so that a matrix
    /// can be checked as well. No config: the file is not YAML, and there is at least one problem.
    #[must_use]
    pub fn read(
        source: Arc<Source>,
        env: &BTreeMap<String, String>,
        sets: &[String],
    ) -> (Option<Self>, Vec<Problem>) {
        let mut config = Self {
            source,
            tree: Tree::default(),
            spelled: HashMap::new(),
            spans: OnceLock::new(),
            environment: std::array::from_fn(|_| None),
            sets: sets.iter().map(|set| Source::new("--set", set)).collect(),
            notes: Vec::new(),
            unlike: Vec::new(),
            variables: BTreeSet::new(),
            translations: Vec::new(),
            faulty: Vec::new(),
            left_out: Vec::new(),
            settings: ConfigFile::default(),
            model_sources: Vec::new(),
        };
        let mut problems = match ConfigReader::read(&mut config, env) {
            Ok(problems) => problems,
            Err(problems) => return (None, problems),
        };
        config.apply_environment(env, &mut problems);
        config.apply_sets(&mut problems);
        known_models::fill(&mut config);
        config.apply_defaults(ROOT, super::shape::defaults());
        config.apply_entry_defaults();
        config.fill_settings();
        problems.extend(check::check(&config));
        let (implausible, unlikely) = super::plausible::look(&config);
        problems.extend(implausible);
        config.notes.extend(unlikely);
        let place = |problem: &Problem| {
            problem
                .place
                .as_ref()
                .filter(|(source, _)| *source == config.source)
                .cloned()
        };
        config.faulty = problems
            .iter()
            .filter_map(place)
            .map(|(_, span)| span)
            .collect();
        (Some(config), problems)
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

    fn apply_environment(&mut self, env: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
        for (index, (variable, path)) in VARIABLES.iter().enumerate() {
            // As in a shell's `${X:-…}`, empty is unset; and a platform that the file lacks has
            // nothing to set.
            let Some(text) = env.get(*variable).filter(|text| !text.is_empty()) else {
                continue;
            };
            let path = match path
                .strip_prefix("hardware.platforms.")
                .and_then(|rest| rest.split_once('.'))
            {
                None => (*path).to_owned(),
                Some((platform, key)) => match self.platforms_named(platform)[..] {
                    [] => continue,
                    [id, ..] => format!("hardware.platforms.{id}.{key}"),
                },
            };
            let source = Source::new("environment", format!("{variable}={text}"));
            self.environment[index] = Some(source.clone());
            if let Err(problem) = self.apply(&path, text, Layer::Environment(index)) {
                problems.push(placed(problem, &source, after_equals(&source)));
            }
        }
    }

    fn apply_sets(&mut self, problems: &mut Vec<Problem>) {
        for (index, source) in self.sets.clone().iter().enumerate() {
            let all = 0..source.text.len();
            let Some((path, text)) = source.text.split_once('=') else {
                let problem = Problem::new(format!("--set {} has no value", source.text));
                problems.push(
                    problem
                        .at(source, all, "expected PATH=VALUE")
                        .help("as in --set training.seed=7"),
                );
                continue;
            };
            if let Err((problem, is_path)) = resolve::resolve(&self.tree, path.trim())
                .map_err(|problem| (problem, true))
                .and_then(|_| {
                    self.apply(path.trim(), text.trim(), Layer::Set(index))
                        .map_err(|problem| (problem, false))
                })
            {
                let span = if is_path {
                    0..path.len()
                } else {
                    after_equals(source)
                };
                problems.push(placed(problem, source, span));
            }
        }
    }

    fn apply(&mut self, path: &str, text: &str, layer: Layer) -> Result<(), Problem> {
        let value = resolve::parse_text(&self.tree, path, text)?;
        for (keys, value) in resolve::typed(&self.tree, path, value)? {
            let node = keys
                .iter()
                .try_fold(ROOT, |node, key| self.tree.enter(node, key));
            let Some(node) = node else {
                return Err(Problem::new(format!("`{path}` is another key's path")));
            };
            if !value.is_null() || is_of_environment(&self.tree, node) {
                self.tree.set(node, value, layer);
            } else if self.tree.node(node).children.is_empty() {
                self.tree.remove(node);
            } else {
                self.tree.clear(node);
            }
        }
        Ok(())
    }

    fn apply_defaults(&mut self, parent: NodeId, defaults: &Value) {
        for (key, value) in defaults.as_object().into_iter().flatten() {
            let known = self.tree.child(self.tree.node(parent), key);
            let (is_new, is_leaf) = (
                known.is_none(),
                known.is_some_and(|node| node.leaf.is_some()),
            );
            let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
            if is_leaf || is_empty || value.is_null() {
                continue;
            }
            let Some(node) = self.tree.enter(parent, key) else {
                continue;
            };
            if value.is_object() {
                self.apply_defaults(node, value);
            } else if is_new {
                self.tree.set(node, value.clone(), Layer::Default);
            }
        }
    }

    /// The defaults of tables whose keys are the user's: each entry has them.
    fn apply_entry_defaults(&mut self) {
        for (table, defaults) in super::shape::entry_defaults() {
            let Some(node) = self.tree.find(table) else {
                continue;
            };
            for entry in node.children.clone() {
                if self.tree.node(entry).leaf.is_none() {
                    self.apply_defaults(entry, defaults);
                }
            }
        }
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
        let mut stack = vec![(ROOT, shapes().root)];
        while let Some((node, shape)) = stack.pop() {
            let (node, shape) = (self.tree.node(node), shapes().get(shape));
            if let Some(why) = &shape.descriptive {
                let is_stated = node
                    .leaf
                    .as_ref()
                    .is_none_or(|(_, layer)| *layer >= Layer::File);
                if is_stated && why != "a text for people" && self.place(&node.path).is_some() {
                    found.push(node.path.to_string());
                }
                continue;
            }
            for child in node.children.iter().rev() {
                if let Some((_, below)) = shape.field(self.tree.node(*child).key()) {
                    stack.push((*child, below));
                }
            }
        }
        found
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
        self.tree.leaf(path).map(|(value, _)| value)
    }

    /// Where the value of a path comes from; none where there is none.
    pub(super) fn origin_at(&self, path: &str) -> Option<Origin> {
        self.tree
            .leaf(path)
            .map(|(_, layer)| self.origin_of(path, *layer))
    }

    fn origin_of(&self, path: &str, layer: Layer) -> Origin {
        match layer {
            Layer::Default => Origin::Default,
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
        self.tree
            .find(path)
            .into_iter()
            .flat_map(|node| self.tree.children(node))
            .map(super::tree::Node::key)
    }

    /// Is there such a value or table?
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.tree.find(path).is_some()
    }

    /// Every effective value in file order.
    pub fn effective(&self) -> impl Iterator<Item = (&str, &Value, Origin)> {
        self.tree
            .leaves()
            .map(|(path, value, layer)| (&**path, value, self.origin_of(path, layer)))
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
        let given = match self.tree.leaf(path).map(|(_, layer)| *layer) {
            Some(Layer::Environment(index)) => self.environment[index].as_ref(),
            Some(Layer::Set(index)) => self.sets.get(index),
            _ => None,
        };
        match given {
            Some(source) => Problem::new(message).at(source, after_equals(source), label),
            None => Problem::new(message).at(&self.source, self.nearest_span(path), label),
        }
    }

    /// The `--set` that gave the value of `path`, on all platforms or on one, and where in it the
    /// path stands.
    #[must_use]
    pub fn set_of(&self, path: &str) -> Option<(&Arc<Source>, Range<usize>)> {
        let platforms = self.children("platform_optimizations");
        let of_platform = |id: &str| {
            let keys = super::view::platform_keys(path).iter();
            keys.map(|key| format!("platform_optimizations.{id}.{key}"))
                .collect::<Vec<_>>()
        };
        let paths = std::iter::once(path.to_owned()).chain(platforms.flat_map(of_platform));
        for path in paths {
            if let Some((_, Layer::Set(index))) = self.tree.leaf(&path) {
                let source = self.sets.get(*index)?;
                return Some((
                    source,
                    0..source.text.find('=').unwrap_or(source.text.len()),
                ));
            }
        }
        None
    }

    pub(super) fn spans(&self) -> &Spans {
        self.spans.get_or_init(|| Spans::of(&self.source.text))
    }

    /// Where the file spells `path`, if it does.
    pub(super) fn place(&self, path: &str) -> Option<Place> {
        self.spans()
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
                    let value = self.get(&path).map(super::plain).unwrap_or_default();
                    let is_written = || {
                        let span = self.place(&path).map_or(0..0, |place| place.value);
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

    /// The canonical form of a path that a person wrote, if config.yaml may hold such a value or
    /// table.
    pub fn resolve(&self, path: &str) -> Result<Arc<str>, Problem> {
        resolve::resolve(&self.tree, path).map(|resolved| resolved.keys.join(".").into())
    }

    /// Like [`Config::resolve`], but of a single value, and ready to check values for it.
    pub fn leaf(&self, path: &str) -> Result<Leaf, Problem> {
        Leaf::find(&self.tree, path)
    }

    /// `value` as the schema wants it at `path`, a table as its leaves. Problems come without a
    /// place.
    pub fn typed(&self, path: &str, value: Value) -> Result<Vec<(Arc<str>, Value)>, Problem> {
        let leaves = resolve::typed(&self.tree, path, value)?;
        Ok(leaves
            .into_iter()
            .map(|(keys, value)| (keys.join(".").into(), value))
            .collect())
    }

    /// The effective entries of a table, nested; empty where there is none.
    #[must_use]
    pub fn table(&self, path: &str) -> BTreeMap<String, Value> {
        self.general().table(path)
    }

    /// This config without a matrix and without a recipe.
    #[must_use]
    pub fn general(&self) -> View<'_> {
        static NO_DEFAULTS: LazyLock<Values> = LazyLock::new(Values::default);
        self.view(&NO_DEFAULTS, &[])
    }

    /// This config between a cell's settings (stronger, but for `--set`) and its recipe's defaults
    /// (weaker).
    #[must_use]
    pub fn view<'a>(&'a self, recipe_defaults: &'a Values, overlay: &'a [Setting]) -> View<'a> {
        View::new(self, recipe_defaults, overlay)
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

/// Is the node a variable of an `env` table? There null is a statement: it takes away what a weaker
/// table sets.
pub(super) fn is_of_environment(tree: &Tree<Layer>, node: NodeId) -> bool {
    let node = tree.node(node);
    let table = node
        .path
        .strip_suffix(node.key())
        .and_then(|path| path.strip_suffix('.'));
    table.is_some_and(|table| table.ends_with(".env"))
}

/// The value in `NAME=value`.
fn after_equals(source: &Source) -> Range<usize> {
    source.text.find('=').map_or(0, |at| at + 1)..source.text.len()
}

pub(super) fn placed(mut problem: Problem, source: &Arc<Source>, span: Range<usize>) -> Problem {
    problem.place = Some((source.clone(), span));
    problem
}
