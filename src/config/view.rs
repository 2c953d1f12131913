//! A [`Config`] as one cell sees it: with the matrix's settings above, a recipe's defaults below,
//! and what its platform and its framework do differently in place of what holds for all.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, LazyLock},
};
use tprimat_base::words::part;

use serde_json::{Map, Value};

use super::{
    layers::{Config, Layer, Origin, Strength},
    names::{canonical_id, vendor_names},
    nested::{self, join, longest_key},
    resolve::{MAX_PARTS, labelled},
    shape::Shape,
};
use crate::{
    error::{Problem, Source},
    job::Vendor,
};

/// One value that a matrix gives to a cell, by an axis or an override. Its path is canonical.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub path: Arc<str>,
    pub value: Value,
    pub origin: Origin,
}

/// A recipe's defaults: values by path, below config.yaml.
#[derive(Clone, Debug, Default)]
pub struct Values {
    name: String,
    values: Value,
}

impl Values {
    /// `name` is the recipe's, for problems.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            values: Value::Object(Map::new()),
        }
    }

    /// Adds the default of a dotted path, checked as a value of config.yaml is. Problems come
    /// without a place.
    pub fn add(&mut self, path: &str, value: &Value) -> Result<(), Problem> {
        if path.matches('.').count() >= MAX_PARTS {
            return Err(Problem::new(format!(
                "a default's path has at most {MAX_PARTS} keys"
            )));
        }
        let (mut keys, mut shape) = (Vec::new(), Shape::root());
        for key in path.split('.') {
            shape = self.enter(&mut keys, shape, key)?;
        }
        self.insert(&keys, shape, value)
    }

    fn insert(&mut self, keys: &[String], shape: Shape, value: &Value) -> Result<(), Problem> {
        if let Value::Object(entries) = value
            && shape.is_table()
        {
            for (key, value) in entries {
                let mut keys = keys.to_vec();
                let field = self.enter(&mut keys, shape, key)?;
                self.insert(&keys, field, value)?;
            }
            return Ok(());
        }
        let path = keys.join(".");
        if nested::find(&self.values, &path).is_some() {
            return Err(through_another(&path));
        }
        let value = shape.accept(&path, value.clone())?;
        nested::put(&mut self.values, keys, value);
        Ok(())
    }

    /// Adds the key below `keys`, spelled out; what it may hold.
    fn enter(&self, keys: &mut Vec<String>, shape: Shape, key: &str) -> Result<Shape, Problem> {
        let table = keys.join(".");
        if nested::leaf(&self.values, &table).is_some() {
            return Err(through_another(&table));
        }
        let (name, field) = shape
            .field(key)
            .filter(|_| !key.is_empty())
            .ok_or_else(|| shape.unknown_key(&table, key))?;
        keys.push(canonical_id(&table, name).to_owned());
        Ok(field)
    }
}

fn through_another(path: &str) -> Problem {
    let message = format!("a default's path goes through another default, `{path}`");
    labelled(message, "this path")
}

/// Settings of the training that `platform_optimizations.<p>` may state for a platform. Activations
/// are recomputed where either of the two keys says so: one is Megatron's name, the other Hugging
/// Face's.
const PLATFORM_KEYS: [(&str, &[&str]); 4] = [
    (PRECISION, &["precision"]),
    ("training.precision.fp8_hybrid", &["fp8_hybrid"]),
    ("training.precision.fp8_param", &["fp8_param"]),
    (
        "training.activation_checkpointing",
        &["activation_checkpointing", "gradient_checkpointing"],
    ),
];
/// The one that `frameworks.<id>.precision` may state as well; the platform's is stronger.
const PRECISION: &str = "training.precision.default";

/// What `platform_optimizations.<p>.cuda_alloc_conf` sets.
pub(super) const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// The platform's keys that stand for a setting of the training.
fn platform_keys(path: &str) -> &'static [&'static str] {
    PLATFORM_KEYS
        .iter()
        .find(|(of, _)| *of == path)
        .map_or(&[], |(_, keys)| keys)
}

impl Config {
    /// This config without a matrix and without a recipe.
    #[must_use]
    pub fn general(&self) -> View<'_> {
        static NO_DEFAULTS: LazyLock<Values> = LazyLock::new(Values::default);
        self.view(&NO_DEFAULTS, &[])
    }

    /// This config between a cell's settings (stronger, but for `--set`) and its recipe's defaults
    /// (weaker).
    #[must_use]
    pub fn view<'a>(&'a self, recipe: &'a Values, overlay: &'a [Setting]) -> View<'a> {
        View {
            config: self,
            recipe,
            overlay,
            cell: None,
        }
    }

    /// The effective entries of a table, nested; empty where there is none.
    #[must_use]
    pub fn table(&self, path: &str) -> BTreeMap<String, Value> {
        self.general().table(path)
    }

    /// The `--set` that gave the value of `path`, on all platforms or on one, and where in it the
    /// path stands.
    #[must_use]
    pub fn set_of(&self, path: &str) -> Option<(&Arc<Source>, Range<usize>)> {
        let platforms = self.children("platform_optimizations");
        let of_platform = |id: &str| {
            let keys = platform_keys(path).iter();
            keys.map(|key| format!("platform_optimizations.{id}.{key}"))
                .collect::<Vec<_>>()
        };
        let mut paths = std::iter::once(path.to_owned()).chain(platforms.flat_map(of_platform));
        let index = paths.find_map(|path| match self.layer(&path) {
            Layer::Set(index) => Some(index),
            _ => None,
        })?;
        let source = self.sets.get(index)?;
        let end = source.text.find('=').unwrap_or(source.text.len());
        Some((source, 0..end))
    }
}

impl View<'_> {
    /// See [`Config::is_faulty_around`].
    #[must_use]
    pub fn is_faulty_around(&self, path: &str) -> bool {
        self.config.is_faulty_around(path)
    }

    /// How a model differs from the built-in one that its name means, where nothing was taken from
    /// that for this reason.
    #[must_use]
    pub fn unlike_built_in(&self, model: &str) -> Option<&Problem> {
        let mut unlike = self.config.unlike.iter();
        unlike
            .find(|(id, _)| id == model)
            .map(|(_, problem)| problem)
    }
}

/// Precedence: `--set` > the matrix > environment > config.yaml > recipe defaults > built-in
/// defaults. Of one layer, what the cell's platform states is stronger than what its framework
/// states, and that than what holds for all.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(super) config: &'a Config,
    recipe: &'a Values,
    pub(super) overlay: &'a [Setting],
    cell: Option<CellNames<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct CellNames<'a> {
    platform: &'a str,
    vendor: Vendor,
    framework: &'a str,
}

/// A value that was found.
struct Hit<'a> {
    /// The platform's or framework's key, where that states the setting.
    narrower: Option<String>,
    value: &'a Value,
    layer: Layer,
}

impl<'a> View<'a> {
    /// This view for a cell of these names, whose platform and framework may state some of the
    /// training.
    #[must_use]
    pub fn of_cell(self, platform: &'a str, vendor: Vendor, framework: &'a str) -> Self {
        Self {
            cell: Some(CellNames {
                platform,
                vendor,
                framework,
            }),
            ..self
        }
    }

    fn find(&self, path: &str) -> Option<Hit<'a>> {
        let general = self.find_general(path);
        let strength = |hit: &Hit<'_>| hit.layer.strength();
        let least = general.as_ref().map_or(Strength::Default, strength);
        let narrower = self.of_platform(path).or_else(|| self.of_framework(path));
        narrower.filter(|hit| strength(hit) >= least).or(general)
    }

    /// What the cell's platform states of a setting of the training.
    fn of_platform(&self, path: &str) -> Option<Hit<'a>> {
        let cell = self.cell?;
        let mut first = None;
        for key in platform_keys(path) {
            let Some(hit) = self.platform_key(cell, key) else {
                continue;
            };
            if hit.value == &Value::Bool(true) {
                return Some(hit);
            }
            first = first.or(Some(hit));
        }
        first
    }

    /// A key of `platform_optimizations`: of the block of the platform's id, else of its vendor's.
    fn platform_key(&self, cell: CellNames<'_>, key: &str) -> Option<Hit<'a>> {
        for name in std::iter::once(cell.platform).chain(vendor_names(cell.vendor).iter().copied())
        {
            let block = format!("platform_optimizations.{name}");
            if let Some(hit) = self.find_narrower(format!("{block}.{key}")) {
                return Some(hit);
            }
            if self.config.contains(&block) {
                return None;
            }
        }
        None
    }

    fn of_framework(&self, path: &str) -> Option<Hit<'a>> {
        let cell = self.cell.filter(|_| path == PRECISION)?;
        self.find_narrower(format!("frameworks.{}.precision", cell.framework))
    }

    fn find_narrower(&self, path: String) -> Option<Hit<'a>> {
        let hit = self.find_general(&path)?;
        Some(Hit {
            narrower: Some(path),
            ..hit
        })
    }

    /// What holds for all platforms and frameworks.
    fn find_general(&self, path: &str) -> Option<Hit<'a>> {
        let hit = |value, layer| {
            Some(Hit {
                narrower: None,
                value,
                layer,
            })
        };
        let there = self.config.find(path);
        let own = there.filter(|value| !value.is_object());
        let layer = self.config.layer(path);
        if (own.is_none() || layer.strength() < Strength::Set)
            && let Some(index) = self.overlay.iter().rposition(|s| *s.path == *path)
        {
            return hit(&self.overlay[index].value, Layer::Matrix(index));
        }
        if (own.is_none() || layer == Layer::Default)
            && let Some(value) = nested::leaf(&self.recipe.values, path)
            && there.is_none_or(|there| there.as_object().is_none_or(serde_json::Map::is_empty))
            && !self.is_below_a_value(path)
        {
            return hit(value, Layer::Recipe);
        }
        hit(own?, layer)
    }

    /// The last setting of the matrix below a table that config.yaml does not have.
    fn last_set_below(&self, path: &str) -> Option<Hit<'a>> {
        let is_below = |setting: &Setting| {
            let rest = setting.path.strip_prefix(path);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let index = self.overlay.iter().rposition(is_below)?;
        (!self.config.contains(path)).then_some(Hit {
            narrower: None,
            value: &self.overlay[index].value,
            layer: Layer::Matrix(index),
        })
    }

    /// Does config.yaml state a value where the recipe has a table?
    fn is_below_a_value(&self, path: &str) -> bool {
        path.match_indices('.')
            .any(|(dot, _)| self.config.get(part(path, ..dot)).is_some())
    }

    /// The effective value of a canonical dotted path; none for tables and for what nobody states.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&'a Value> {
        self.find(path).map(|hit| hit.value)
    }

    /// Does somebody state a value, so that no default holds?
    pub(super) fn is_stated(&self, path: &str) -> bool {
        self.find(path)
            .is_some_and(|hit| hit.layer.strength() > Strength::Default)
    }

    /// Where the effective value comes from, and the path that states it.
    #[must_use]
    pub fn origin(&self, path: &str) -> Option<(String, Origin)> {
        let hit = self.find(path)?;
        let path = hit.narrower.unwrap_or_else(|| path.to_owned());
        let origin = match hit.layer {
            Layer::Matrix(index) => self.overlay[index].origin.clone(),
            Layer::Recipe => Origin::Recipe(self.recipe.name.clone()),
            _ => self.config.origin(&path),
        };
        Some((path, origin))
    }

    /// Settings of the training that the cell's platform or framework states, where something else
    /// states them otherwise: the path that counts, and the other one with its value.
    #[must_use]
    pub fn overruled(&self) -> Vec<(String, String, &'a Value)> {
        let mut overruled = Vec::new();
        for (path, keys) in PLATFORM_KEYS {
            let Some(Hit {
                narrower: Some(counts),
                value,
                ..
            }) = self.find(path)
            else {
                continue;
            };
            let framework = self.of_framework(path);
            let twins = self.cell.into_iter().flat_map(|cell| {
                keys.iter()
                    .filter_map(move |key| self.platform_key(cell, key))
            });
            for other in twins.chain(framework).filter(|other| other.value != value) {
                overruled.push((
                    counts.clone(),
                    other.narrower.unwrap_or_default(),
                    other.value,
                ));
            }
        }
        overruled
    }

    /// A path of config.yaml as it is spelled there, where that is otherwise.
    #[must_use]
    pub fn spelled(&self, path: &str) -> Option<&str> {
        self.config.spelled.get(path).map(String::as_str)
    }

    /// A problem at the value of `path`, in whichever file, variable or `--set` gave it.
    #[must_use]
    pub fn problem_at(
        &self,
        path: &str,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Problem {
        // A table has no value: it is where the matrix sets something below it.
        let hit = self.find(path).or_else(|| self.last_set_below(path));
        let narrower = hit.as_ref().and_then(|hit| hit.narrower.as_deref());
        let path = narrower.unwrap_or(path);
        match hit.as_ref().map(|hit| hit.layer) {
            Some(Layer::Matrix(index)) => match &self.overlay[index].origin {
                Origin::Matrix { source, span } => {
                    Problem::new(message).at(source, span.clone(), label)
                }
                _ => Problem::new(message),
            },
            Some(Layer::Recipe) => {
                Problem::new(message).help(format!("a default of the recipe {}", self.recipe.name))
            }
            _ => self.config.problem_at(path, message, label),
        }
    }

    /// The keys below `path`: config.yaml's in file order, then the matrix's, then the recipe's.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<&'a str> {
        let mut keys: Vec<&'a str> = self.config.children(path).collect();
        for key in self.keys_beside(path) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// The keys below `path` that the matrix or the recipe has, whether or not config.yaml has them
    /// too.
    fn keys_beside(&self, path: &str) -> Vec<&'a str> {
        let own = self.config.find(path);
        let mut keys = Vec::new();
        for setting in self.overlay {
            let below = setting.path.strip_prefix(path);
            let below = below.and_then(|rest| rest.strip_prefix('.'));
            if let Some(rest) = below.filter(|_| !self.is_of_a_longer_name(path, &setting.path)) {
                let known = longest_key(own, rest);
                keys.push(known.unwrap_or_else(|| rest.split('.').next().unwrap_or(rest)));
            }
        }
        if own.is_none_or(Value::is_object) {
            keys.extend(nested::keys(nested::find(&self.recipe.values, path)));
        }
        keys
    }

    /// Is a setting below `path` one of another entry of the same table? `models.qwen2.5.num_layers`
    /// is not below the model `qwen2` where there is a model `qwen2.5`.
    fn is_of_a_longer_name(&self, path: &str, setting: &str) -> bool {
        let dots = path.match_indices('.').map(|(dot, _)| dot);
        dots.into_iter().any(|dot| {
            let (table, own) = (part(path, ..dot), part(path, dot + 1..));
            let below = part(setting, dot + 1..);
            let entries = self.config.find(table);
            let longest = longest_key(entries, below);
            entries.is_some_and(|entries| entries.get(own).is_some())
                && longest.is_some_and(|longest| longest != own)
        })
    }

    /// The effective entries of a table, nested; empty where there is none.
    #[must_use]
    pub fn table(&self, path: &str) -> BTreeMap<String, Value> {
        match self.nested(path) {
            Some(Value::Object(entries)) => entries.into_iter().collect(),
            _ => BTreeMap::new(),
        }
    }

    /// All that is effective at and below `path`, nested; none where there is nothing.
    #[must_use]
    pub fn nested(&self, path: &str) -> Option<Value> {
        if let Some(value) = self.get(path) {
            return Some(value.clone());
        }
        let keys = self.children(path);
        if keys.is_empty() && !self.config.contains(path) {
            return None;
        }
        let entry = |key: &str| Some((key.to_owned(), self.nested(&join(path, key))?));
        Some(Value::Object(keys.into_iter().filter_map(entry).collect()))
    }

    /// Environment of every run on a platform: of `platform_optimizations` (the id's, else the
    /// vendor's), then of `hardware.platforms`.
    #[must_use]
    pub fn platform_env(&self, platform: &str, vendor: Vendor) -> BTreeMap<&'a str, Cow<'a, str>> {
        let names = || std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
        let blocks = self.config.find("platform_optimizations");
        let has_block = |name: &&str| blocks.is_some_and(|blocks| blocks.get(name).is_some());
        let shared = names().find(has_block);
        let table = |name: &str| format!("platform_optimizations.{name}.env");
        let mut env = BTreeMap::new();
        let cell = CellNames {
            platform,
            vendor,
            framework: "",
        };
        if let Some(hit) = self.platform_key(cell, "cuda_alloc_conf") {
            set_variable(&mut env, ALLOCATOR, Some(hit.value));
        }
        let mut add = |table: &str, names: Vec<&'a str>| {
            for name in names {
                set_variable(&mut env, name, self.get(&join(table, name)));
            }
        };
        if let Some(table) = shared.map(table) {
            add(&table, self.children(&table));
        }
        // A matrix may set what config.yaml has no block for.
        let others: Vec<&str> = names().filter(|name| Some(*name) != shared).collect();
        for table in others.into_iter().rev().map(table) {
            let is_its = |s: &Setting| s.path.starts_with(&format!("{table}."));
            if self.overlay.iter().any(is_its) {
                add(&table, self.keys_beside(&table));
            }
        }
        let own = format!("hardware.platforms.{platform}.env");
        add(&own, self.children(&own));
        env
    }
}

/// Null unsets.
fn set_variable<'a>(
    env: &mut BTreeMap<&'a str, Cow<'a, str>>,
    name: &'a str,
    value: Option<&'a Value>,
) {
    match value {
        Some(Value::String(text)) => env.insert(name, Cow::Borrowed(text)),
        Some(Value::Null) | None => env.remove(name),
        Some(other) => env.insert(name, Cow::Owned(other.to_string())),
    };
}
