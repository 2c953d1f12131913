//! output/: what people open. Written from the cache, whole or not at all.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::{
    cache::{Cache, Output},
    digest::Digest,
    error::{Error, Result},
    files::{Durability, write_atomically},
    plan::Plan,
};

#[must_use]
pub fn output_dir(plan: &Plan) -> PathBuf {
    let name = plan.config.get("paths.output").and_then(|v| v.as_str()).unwrap_or("output");
    plan.root.join(name)
}

/// The first output whose published file is not what it should be.
#[must_use]
pub fn first_unpublished(folder: &Path, outputs: &[Output]) -> Option<String> {
    let differs = |output: &&Output| {
        let path = folder.join(&output.name);
        let same_size = std::fs::metadata(&path).is_ok_and(|m| m.len() == output.size);
        !same_size || Digest::of_file(&path).ok() != Some(output.digest)
    };
    outputs.par_iter().find_first(differs).map(|output| output.name.clone())
}

/// Writes the outputs that are not there yet as they should be.
pub fn publish(folder: &Path, cache: &Cache, outputs: &[Output]) -> Result<()> {
    for output in outputs {
        if first_unpublished(folder, std::slice::from_ref(output)).is_none() {
            continue;
        }
        let bytes = cache
            .get(&output.digest)?
            .ok_or_else(|| Error::Cache(format!("`{}` is gone from the cache; build again", output.name)))?;
        write_atomically(&folder.join(&output.name), &bytes, Durability::Plain)?;
    }
    Ok(())
}
