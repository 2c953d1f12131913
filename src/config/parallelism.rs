//! Which block of `parallelism.<strategy>` a cell takes.
//!
//! A block may stand under the strategy itself or under a model, a platform and a framework, each
//! optional, in this order; a block that names the model wins over one that does not, then
//! platform, then framework. The most specific block wins whole: nothing is inherited from a wider
//! one.

use std::sync::Arc;

use serde_json::Value;

use super::{
    names::{framework_names, vendor_names},
    nested::{fill, join},
    schema::Parallelism,
    shape::parallelism_fields,
    view::View,
};
use crate::job::Vendor;

pub(super) fn is_field(key: &str) -> bool {
    parallelism_fields().any(|field| field == key)
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
        let platforms = std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
        let others = framework_names(framework).iter().map(String::as_str);
        let levels = [
            vec![model],
            platforms.collect(),
            std::iter::once(framework).chain(others).collect(),
        ];
        let root = join("parallelism", strategy);
        let own = self.config.find(&root);
        let own = own.and_then(|strategy| best(&root, strategy, &levels));
        let mut best = own.and_then(|path| Some((rank(&path, &root, &levels)?, path)));
        for block in self.blocks_set_below(&root) {
            if let Some(rank) = rank(block, &root, &levels)
                && best.as_ref().is_none_or(|(known, _)| rank > *known)
            {
                best = Some((rank, block.to_owned()));
            }
        }
        let (_, path) = best?;
        let stated = parallelism_fields().filter_map(|field| {
            let value = self.get(&join(&path, field))?;
            Some((field.to_owned(), value.clone()))
        });
        let block = fill(Some(Value::Object(stated.collect())));
        Some((path.into(), block))
    }

    /// The blocks below a strategy of which the matrix sets a field.
    fn blocks_set_below(&self, root: &str) -> impl Iterator<Item = &str> {
        self.overlay.iter().filter_map(move |setting| {
            let (block, field) = setting.path.rsplit_once('.')?;
            (block.starts_with(root) && is_field(field)).then_some(block)
        })
    }
}

/// The path of the most specific block at or below a table, by the names of the levels that are left.
/// A table that states something itself is a block; others only hold blocks.
fn best(path: &str, table: &Value, levels: &[Vec<&str>]) -> Option<String> {
    for (depth, names) in levels.iter().enumerate() {
        for name in names {
            let below = table.get(name);
            let found =
                below.and_then(|below| best(&join(path, name), below, &levels[depth + 1..]));
            if found.is_some() {
                return found;
            }
        }
    }
    let mut entries = table.as_object()?.values();
    entries
        .any(|entry| !entry.is_object())
        .then(|| path.to_owned())
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
