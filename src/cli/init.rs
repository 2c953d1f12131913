//! `init`: a starter project. The recipes and templates it uses are in the binary.

use std::path::{Path, PathBuf};

use super::args::InitArgs;
use crate::{
    error::{Error, Problem, Result, exit},
    files::{Durability, write_atomically},
    recipe::{embedded_file, embedded_under},
};

const IGNORE: &[u8] = b"/cache/\n/output/\n/.venv/\n";

pub fn run(at: Option<&Path>, args: &InitArgs) -> Result<i32> {
    let root = match (at, &args.folder) {
        (Some(at), Some(folder)) => at.join(folder),
        (Some(at), None) => at.to_owned(),
        (None, folder) => folder.clone().unwrap_or_else(|| PathBuf::from(".")),
    };
    let mut files: Vec<(String, &[u8])> =
        vec![("config.yaml".into(), embedded_file("config.yaml").unwrap_or_default())];
    files.extend(embedded_under("pipelines/").map(|(name, bytes)| (format!("pipelines/{name}"), bytes)));
    files.push((".gitignore".into(), IGNORE));
    if root.join("config.yaml").exists() {
        return Err(Error::invalid(
            Problem::new(format!("{} has a config.yaml already; nothing was written", root.display()))
                .help("`tprimat init DIR` starts a project elsewhere"),
        ));
    }
    for (name, bytes) in files {
        let path = root.join(&name);
        if !path.exists() {
            write_atomically(&path, bytes, Durability::Plain)?;
            eprintln!("wrote {name}");
        }
    }
    eprintln!("next: `tprimat plan quickstart.toml` shows what would run, `tprimat build quickstart.toml` runs it");
    Ok(exit::OK)
}
