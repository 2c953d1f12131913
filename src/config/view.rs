//! A [`Config`] as one cell sees it: with the matrix's settings above, a recipe's defaults below,
//! and what its platform and its framework do differently in place of what holds for all.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};
use tprimat_words::part;

use serde_json::Value;

use super::{
    layers::{Config, Layer, Origin},
    names::canonical_id,
    resolve::MAX_PARTS,
    shape::{ShapeId, join, shapes},
    tree::{Node, NodeId, ROOT, Tree},
    vendor_names,
};
use crate::{error::Problem, job::Vendor};

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
    tree: Tree<()>,
}

impl Values {
    /// `name` is the recipe's, for problems.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tree: Tree::default(),
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
        let (mut node, mut shape) = (ROOT, shapes().root);
        for key in path.split('.') {
            (node, shape) = self.enter(node, shape, key)?;
        }
        self.insert(node, shape, value)
    }

    fn insert(&mut self, node: NodeId, shape: ShapeId, value: &Value) -> Result<(), Problem> {
        let known = shapes().get(shape);
        if let Value::Object(entries) = value
            && known.is_table()
        {
            for (key, value) in entries {
                let (node, shape) = self.enter(node, shape, key)?;
                self.insert(node, shape, value)?;
            }
            return Ok(());
        }
        let Node {
            path,
            children,
            leaf,
            ..
        } = self.tree.node(node);
        if leaf.is_some() || !children.is_empty() {
            return Err(through_another(path));
        }
        let value = known.accept(path, value.clone())?;
        self.tree.set(node, value, ());
        Ok(())
    }

    fn enter(
        &mut self,
        table: NodeId,
        shape: ShapeId,
        key: &str,
    ) -> Result<(NodeId, ShapeId), Problem> {
        let shape = shapes().get(shape);
        let Node { path, leaf, .. } = self.tree.node(table);
        if leaf.is_some() {
            return Err(through_another(path));
        }
        let (name, field) = shape
            .field(key)
            .filter(|_| !key.is_empty())
            .ok_or_else(|| shape.unknown_key(path, key))?;
        let name = canonical_id(path, name);
        let node = self.tree.enter(table, name);
        Ok((node.ok_or_else(|| through_another(name))?, field))
    }
}

fn through_another(path: &str) -> Problem {
    let mut problem = Problem::new(format!(
        "a default's path goes through another default, `{path}`"
    ));
    problem.label = "this path".into();
    problem
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
pub(super) fn platform_keys(path: &str) -> &'static [&'static str] {
    PLATFORM_KEYS
        .iter()
        .find(|(of, _)| *of == path)
        .map_or(&[], |(_, keys)| keys)
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

/// Where a value was found.
enum Found<'a> {
    Config,
    Overlay(&'a Setting),
    Recipe,
}

struct Hit<'a> {
    /// The platform's or framework's key, where that states the setting.
    narrower: Option<String>,
    value: &'a Value,
    found: Found<'a>,
    strength: Strength,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Default,
    File,
    Environment,
    Matrix,
    Set,
}

impl From<Layer> for Strength {
    fn from(layer: Layer) -> Self {
        match layer {
            Layer::Default | Layer::Model(_) => Self::Default,
            Layer::File => Self::File,
            Layer::Environment(_) => Self::Environment,
            Layer::Set(_) => Self::Set,
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn new(config: &'a Config, recipe: &'a Values, overlay: &'a [Setting]) -> Self {
        Self {
            config,
            recipe,
            overlay,
            cell: None,
        }
    }

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
        let strength = general
            .as_ref()
            .map_or(Strength::Default, |hit| hit.strength);
        let narrower = self.of_platform(path).or_else(|| self.of_framework(path));
        narrower.filter(|hit| hit.strength >= strength).or(general)
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
        let hit = |value, found, strength| {
            Some(Hit {
                narrower: None,
                value,
                found,
                strength,
            })
        };
        let node = self.config.tree.find(path);
        let own = node.and_then(|node| node.leaf.as_ref());
        if !matches!(own, Some((_, Layer::Set(_))))
            && let Some(setting) = self.overlay.iter().rfind(|setting| &*setting.path == path)
        {
            return hit(&setting.value, Found::Overlay(setting), Strength::Matrix);
        }
        if own.is_none_or(|(_, layer)| *layer == Layer::Default)
            && let Some((value, ())) = self.recipe.tree.leaf(path)
            && node.is_none_or(|node| node.children.is_empty())
            && !self.is_below_a_value(path)
        {
            return hit(value, Found::Recipe, Strength::Default);
        }
        own.and_then(|(value, layer)| hit(value, Found::Config, (*layer).into()))
    }

    /// The last setting of the matrix below a table that config.yaml does not have.
    fn last_set_below(&self, path: &str) -> Option<Hit<'a>> {
        let is_below = |setting: &&Setting| {
            let rest = setting.path.strip_prefix(path);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let setting = self.overlay.iter().rfind(is_below)?;
        (!self.config.contains(path)).then_some(Hit {
            narrower: None,
            value: &setting.value,
            found: Found::Overlay(setting),
            strength: Strength::Matrix,
        })
    }

    /// Does config.yaml state a value where the recipe has a table?
    fn is_below_a_value(&self, path: &str) -> bool {
        path.match_indices('.')
            .any(|(dot, _)| self.config.tree.leaf(part(path, ..dot)).is_some())
    }

    /// The effective value of a canonical dotted path; none for tables and for what nobody states.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&'a Value> {
        self.find(path).map(|hit| hit.value)
    }

    /// Does somebody state a value, so that no default holds?
    pub(super) fn is_stated(&self, path: &str) -> bool {
        self.find(path)
            .is_some_and(|hit| hit.strength > Strength::Default)
    }

    /// Where the effective value comes from, and the path that states it.
    #[must_use]
    pub fn origin(&self, path: &str) -> Option<(String, Origin)> {
        let Hit {
            narrower, found, ..
        } = self.find(path)?;
        let path = narrower.unwrap_or_else(|| path.to_owned());
        let origin = match found {
            Found::Overlay(setting) => setting.origin.clone(),
            Found::Recipe => Origin::Recipe(self.recipe.name.clone()),
            Found::Config => self.config.origin_at(&path)?,
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
        let path = hit
            .as_ref()
            .and_then(|hit| hit.narrower.as_deref())
            .unwrap_or(path);
        match hit.as_ref().map(|hit| &hit.found) {
            Some(Found::Overlay(setting)) => match &setting.origin {
                Origin::Matrix { source, span } => {
                    Problem::new(message).at(source, span.clone(), label)
                }
                _ => Problem::new(message),
            },
            Some(Found::Recipe) => {
                Problem::new(message).help(format!("a default of the recipe {}", self.recipe.name))
            }
            Some(Found::Config) | None => self.config.problem_at(path, message, label),
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
        let mut keys = Vec::new();
        for setting in self.overlay {
            let below = setting
                .path
                .strip_prefix(path)
                .and_then(|rest| rest.strip_prefix('.'));
            if let Some(rest) = below.filter(|_| !self.is_of_a_longer_name(path, &setting.path)) {
                let known = self
                    .config
                    .tree
                    .find(path)
                    .and_then(|node| self.config.tree.longest_key(node, rest));
                keys.push(known.unwrap_or_else(|| rest.split('.').next().unwrap_or(rest)));
            }
        }
        if let Some(node) = self
            .recipe
            .tree
            .find(path)
            .filter(|_| self.config.tree.leaf(path).is_none())
        {
            keys.extend(self.recipe.tree.children(node).map(Node::key));
        }
        keys
    }

    /// Is a setting below `path` one of another entry of the same table? `models.qwen2.5.num_layers`
    /// is not below the model `qwen2` where there is a model `qwen2.5`.
    fn is_of_a_longer_name(&self, path: &str, setting: &str) -> bool {
        let tree = &self.config.tree;
        let longest = || {
            let own = tree.find(path)?.key();
            let table = path.strip_suffix(own)?.strip_suffix('.')?;
            let below = setting.strip_prefix(table)?.strip_prefix('.')?;
            Some(tree.longest_key(tree.find(table)?, below)? != own)
        };
        longest().unwrap_or(false)
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
        let tree = &self.config.tree;
        let names = || std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
        let of = |name: &str| format!("platform_optimizations.{name}.env");
        let shared = tree
            .find("platform_optimizations")
            .and_then(|node| names().find_map(|name| tree.child(node, name)))
            .map(|node| join(&node.path, "env"));
        // A matrix may set what config.yaml has no block for.
        let overlaid = |table: &String| {
            self.overlay
                .iter()
                .any(|s| s.path.starts_with(&format!("{table}.")))
        };
        let beside: Vec<String> = names()
            .map(of)
            .filter(|t| Some(t) != shared.as_ref() && overlaid(t))
            .collect();
        let own = format!("hardware.platforms.{platform}.env");
        let mut env = BTreeMap::new();
        let cell = CellNames {
            platform,
            vendor,
            framework: "",
        };
        if let Some(hit) = self.platform_key(cell, "cuda_alloc_conf") {
            set_variable(&mut env, ALLOCATOR, Some(hit.value));
        }
        for table in shared
            .into_iter()
            .chain(beside.into_iter().rev())
            .chain([own])
        {
            let own = tree
                .find(&table)
                .into_iter()
                .flat_map(|node| tree.children(node));
            own.for_each(|node| set_variable(&mut env, node.key(), self.get(&node.path)));
            for name in self.keys_beside(&table) {
                set_variable(&mut env, name, self.get(&join(&table, name)));
            }
        }
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
