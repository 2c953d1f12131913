//! Which block of `parallelism.<strategy>` a cell takes.
//!
//! A block may stand under the strategy itself or under a model, a platform and a framework, each
//! optional, in this order; a block that names the model wins over one that does not, then
//! platform, then framework. The most specific block wins whole: nothing is inherited from a wider
//! one.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;

use super::{
    framework_names,
    layers::Layer,
    shape::join,
    tree::{Node, ROOT, Tree},
    vendor_names,
    view::{Setting, View},
};
use crate::job::Vendor;

/// What one block states; `None` = it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParallelismBlock {
    pub tp: Option<u64>,
    pub pp: Option<u64>,
    pub cp: Option<u64>,
    pub dp: Option<u64>,
    pub ga: Option<u64>,
    pub sharding: Option<String>,
    pub num_gpus: Option<u64>,
    pub nodes: Option<u64>,
}

impl ParallelismBlock {
    /// Takes the value of one of its fields; false: it has no such field.
    fn set(&mut self, field: &str, value: &Value) -> bool {
        let number = match field {
            "tensor_model_parallel_size" => &mut self.tp,
            "pipeline_model_parallel_size" => &mut self.pp,
            "context_parallel_size" => &mut self.cp,
            "data_parallel_size" => &mut self.dp,
            "gradient_accumulation_steps" => &mut self.ga,
            "num_gpus" => &mut self.num_gpus,
            "nodes" => &mut self.nodes,
            "sharding" => {
                self.sharding = value.as_str().map(str::to_owned);
                return true;
            }
            _ => return false,
        };
        *number = value.as_u64();
        true
    }
}

pub(super) fn is_field(key: &str) -> bool {
    ParallelismBlock::default().set(key, &Value::Null)
}

/// All blocks of a config, by path.
pub(super) fn blocks(tree: &Tree<Layer>) -> HashMap<Arc<str>, ParallelismBlock> {
    let mut blocks = HashMap::new();
    let mut stack: Vec<_> = tree.find("parallelism").into_iter().collect();
    while let Some(node) = stack.pop() {
        let mut block = ParallelismBlock::default();
        let mut is_block = false;
        for child in tree.children(node) {
            match &child.leaf {
                Some((value, _)) => is_block |= block.set(child.key(), value),
                None => stack.push(child),
            }
        }
        if is_block {
            blocks.insert(node.path.clone(), block);
        }
    }
    blocks
}

/// The names that each level goes by for one cell, best first: model, platform, framework.
type Levels<'a> = [Vec<&'a str>; 3];

impl View<'_> {
    /// The path of the block that the cell takes, and what the block states. None: the strategy
    /// says nothing for it.
    #[must_use]
    pub fn parallelism(
        &self,
        strategy: &str,
        model: &str,
        platform: &str,
        vendor: Vendor,
        framework: &str,
    ) -> Option<(Arc<str>, ParallelismBlock)> {
        let levels = [
            vec![model],
            std::iter::once(platform)
                .chain(vendor_names(vendor).iter().copied())
                .collect(),
            std::iter::once(framework)
                .chain(framework_names(framework).iter().map(String::as_str))
                .collect(),
        ];
        let root = join("parallelism", strategy);
        let tree = &self.config.tree;
        let own = tree.find(&root).and_then(|node| self.best(node, &levels));
        let mut best =
            own.and_then(|node| Some((rank(&node.path, &root, &levels)?, node.path.clone())));
        let settings: Vec<(&str, &str, &Setting)> = self.settings_below(&root).collect();
        for (block, _, _) in &settings {
            if let Some(rank) = rank(block, &root, &levels)
                && best.as_ref().is_none_or(|(known, _)| rank > *known)
            {
                best = Some((rank, (*block).into()));
            }
        }
        let (_, path) = best?;
        let mut block = self.config.blocks.get(&path).cloned().unwrap_or_default();
        for (_, field, setting) in settings.into_iter().filter(|(block, ..)| **block == *path) {
            // `--set` is stronger than the matrix.
            block.set(field, self.get(&setting.path).unwrap_or(&setting.value));
        }
        Some((path, block))
    }

    /// The matrix's settings of block fields below a strategy, as block and field.
    fn settings_below(&self, root: &str) -> impl Iterator<Item = (&str, &str, &Setting)> {
        self.overlay.iter().filter_map(move |setting| {
            let (block, field) = setting.path.rsplit_once('.')?;
            (block.starts_with(root) && is_field(field)).then_some((block, field, setting))
        })
    }

    /// The most specific block at or below `node`, by the names of the levels that are left.
    fn best<'n>(&'n self, node: &'n Node<Layer>, levels: &[Vec<&str>]) -> Option<&'n Node<Layer>> {
        let tree = &self.config.tree;
        for (depth, names) in levels.iter().enumerate() {
            for name in names {
                let found = tree
                    .child(node, name)
                    .and_then(|child| self.best(child, &levels[depth + 1..]));
                if found.is_some() {
                    return found;
                }
            }
        }
        self.config.blocks.contains_key(&node.path).then_some(node)
    }
}

/// How specific a block is for a cell: model 4, platform 2, framework 1. None: it is for other
/// cells.
fn rank(block: &str, root: &str, levels: &Levels<'_>) -> Option<u32> {
    let mut rest = block.strip_prefix(root)?;
    let mut rank = 0;
    for (names, worth) in levels.iter().zip([4, 2, 1]) {
        let below = |name: &&str| {
            let after = rest.strip_prefix('.')?.strip_prefix(*name)?;
            (after.is_empty() || after.starts_with('.')).then_some(after)
        };
        if let Some(after) = names.iter().find_map(below) {
            rest = after;
            rank += worth;
        }
    }
    rest.is_empty().then_some(rank)
}

/// Every table key below `parallelism`, with the levels that it may belong to; for the check of
/// names.
pub(super) fn walk(
    tree: &Tree<Layer>,
    mut visit: impl FnMut(&Node<Layer>, usize) -> Option<usize>,
) {
    let strategies = tree
        .child(tree.node(ROOT), "parallelism")
        .into_iter()
        .flat_map(|node| tree.children(node));
    let mut stack: Vec<_> = strategies.map(|node| (node, 0)).collect();
    while let Some((node, level)) = stack.pop() {
        for child in tree.children(node).filter(|child| !is_field(child.key())) {
            if let Some(level) = visit(child, level) {
                stack.push((child, level));
            }
        }
    }
}
