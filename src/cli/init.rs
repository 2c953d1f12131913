//! `init`: a script with a matrix that runs here, the large example, or what is missing beside a
//! config.yaml. Recipes and templates are in the binary.

use std::path::{Path, PathBuf};

use super::args::{Globals, InitArgs};
use crate::{
    config::Config,
    error::{Error, Result, Source, exit},
    files::{Durability, read_to_string, write_atomically},
    matrix::{self, ImpliedNames, Selection},
    recipe::RecipeSet,
    shipped::{shipped_file, shipped_under},
};

const SCRIPT: &str = "train.py";
const MATRIX: &str = "pipelines/matrix.toml";
/// Where editors find the form of a matrix, as shipped matrices say it.
const EDITORS: &[u8] = b"#:schema ../schemas/matrix.json\n";
/// A project whose script is the user's own.
const STARTER: [(&str, &[u8]); 3] = [
    ("config.yaml", include_bytes!("init/config.yaml")),
    (SCRIPT, include_bytes!("init/train.py")),
    (MATRIX, include_bytes!("init/matrix.toml")),
];
const IGNORE: &[u8] = b"/cache/\n/output/\n/.venv/\n";

pub fn run(globals: &Globals, args: &InitArgs) -> Result<i32> {
    let root = match (globals.directory.as_deref(), &args.folder) {
        (Some(at), Some(folder)) => at.join(folder),
        (Some(at), None) => at.to_owned(),
        (None, folder) => folder.clone().unwrap_or_else(|| PathBuf::from(".")),
    };
    let mut files: Vec<(String, Vec<u8>)> = vec![(".gitignore".into(), IGNORE.to_vec())];
    let has_config = root.join("config.yaml").exists();
    if has_config {
        eprintln!("kept config.yaml");
    } else if args.example.is_some() {
        files.push((
            "config.yaml".into(),
            shipped_file("config.yaml").unwrap_or_default().to_vec(),
        ));
        // They name what the config.yaml declares.
        files.extend(
            shipped_under("pipelines/")
                .map(|(name, bytes)| (format!("pipelines/{name}"), bytes.to_vec())),
        );
    } else {
        let starter = STARTER.map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
        files.extend(starter);
    }
    files.extend(super::print::for_editors()?);
    if args.matrix {
        files.retain(|(name, _)| name != MATRIX);
        let mut text = EDITORS.to_vec();
        text.extend(implied(&root, &files)?);
        files.push((MATRIX.into(), text));
    }
    let mut has_script = false;
    for (name, bytes) in files {
        let path = root.join(&name);
        if path.exists() {
            has_script |= name == SCRIPT && std::fs::read(&path).is_ok_and(|own| own != bytes);
            eprintln!("kept {name}");
        } else {
            write_atomically(&path, &bytes, Durability::Plain)?;
            eprintln!("wrote {name}");
        }
    }
    if has_config {
        eprintln!(
            "next: `tprimat check` says how config.yaml is understood, `tprimat plan` shows what would run"
        );
    } else if has_script {
        eprintln!(
            "next: write the options of your {SCRIPT} and the line that it prints into config.yaml (frameworks.mine); `tprimat check` says \
             what is missing"
        );
    } else if args.example.is_none() {
        eprintln!(
            "next: `tprimat build` trains what train.py trains, four cells of three runs each, and compares them; then put a script of \
             your own beside config.yaml, with its command and the line that it prints"
        );
    } else {
        eprintln!(
            "next: `tprimat plan quickstart.toml` shows what would run, `tprimat build quickstart.toml` runs it"
        );
        eprintln!(
            "quickstart.toml trains with PyTorch on the CPU; where python3 has none: `python3 -m venv .venv && .venv/bin/pip install torch transformers accelerate`"
        );
    }
    Ok(exit::OK)
}

/// The matrix that the folder's config.yaml implies, or the one about to be written there.
fn implied(root: &Path, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let env = super::project::environment();
    let starter = files
        .iter()
        .find(|(name, _)| name == "config.yaml")
        .map(|(_, bytes)| bytes.clone());
    let text = match starter {
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        None => read_to_string(&root.join("config.yaml"))?,
    };
    let config = Config::load(Source::new("config.yaml", text), &env, &[])?;
    let Selection {
        frameworks,
        strategies,
        ..
    } = Selection::default().with_environment(&env);
    let wanted = ImpliedNames {
        frameworks: &frameworks,
        strategies: &strategies,
    };
    let recipes = RecipeSet::load(root)?;
    Ok(matrix::implied(&config, wanted, &recipes.ids())
        .map_err(Error::Invalid)?
        .into_bytes())
}
