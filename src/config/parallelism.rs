//! Which block of `parallelism.<strategy>` a cell takes.
//!
//! A block may stand under the strategy itself or under a model, a platform and a framework, each
//! optional, in this order; a block that names the model wins over one that does not, then
//! platform, then framework. The most specific block wins whole: nothing is inherited from a wider
//! one.

use std::sync::Arc;

use serde_json::Value;

use super::{
    framework_names,
    layers::Layer,
    schema::Parallelism,
    sections::fill,
    shape::join,
    tree::{Node, ROOT, Tree},
    vendor_names,
    view::View,
};
use crate::job::Vendor;

pub(super) fn is_field(key: &str) -> bool {
    super::shape::parallelism_fields().any(|field| field == key)
}

/// A table that states something itself is a block; others only hold blocks.
fn is_block(tree: &Tree<Layer>, node: &Node<Layer>) -> bool {
    tree.children(node).any(|child| child.leaf.is_some())
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
    ) -> Option<(Arc<str>, Parallelism)> {
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
        for block in self.blocks_set_below(&root) {
            if let Some(rank) = rank(block, &root, &levels)
                && best.as_ref().is_none_or(|(known, _)| rank > *known)
            {
                best = Some((rank, block.into()));
            }
        }
        let (_, path) = best?;
        let stated = super::shape::parallelism_fields().filter_map(|field| {
            let value = self.get(&join(&path, field))?;
            Some((field.to_owned(), value.clone()))
        });
        let block = fill(Some(Value::Object(stated.collect())));
        Some((path, block))
    }

    /// The blocks below a strategy of which the matrix sets a field.
    fn blocks_set_below(&self, root: &str) -> impl Iterator<Item = &str> {
        self.overlay.iter().filter_map(move |setting| {
            let (block, field) = setting.path.rsplit_once('.')?;
            (block.starts_with(root) && is_field(field)).then_some(block)
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
        is_block(tree, node).then_some(node)
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
