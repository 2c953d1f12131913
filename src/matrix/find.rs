//! Which file a matrix's name means.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Problem, Result, nearest},
    files::ReadSet,
};

const FOLDER: &str = "pipelines";

/// No name: `matrix.toml`, then `pipelines/matrix.toml`, then the only file in pipelines; where
/// there is none at all, config.yaml implies the matrix, and that is `None`. A name is a file of
/// `root`, else of `root/pipelines`, with or without `.toml`, else of the current folder,
/// else the only one that states this `name`. Where
/// none was is noted in `reads`: one that appears there comes first.
pub fn find(name: Option<&str>, root: &Path, reads: &ReadSet) -> Result<Option<PathBuf>> {
    let pipelines = root.join(FOLDER);
    let candidates = match name {
        None => vec![root.join("matrix.toml"), pipelines.join("matrix.toml")],
        Some(name) => {
            let long = format!("{name}.toml");
            vec![
                root.join(name),
                root.join(&long),
                pipelines.join(name),
                pipelines.join(&long),
                name.into(),
            ]
        }
    };
    for path in candidates {
        if reads
            .is_there(&path)
            .map_err(Error::io("cannot look for the matrix", &path))?
        {
            return Ok(Some(path));
        }
    }
    // By the name that a file states, as reports have it.
    if let Some(name) = name {
        let all = named(root).unwrap_or_default().into_iter();
        let mut own = all.filter(|(_, stated)| stated == name);
        if let (Some((path, _)), None) = (own.next(), own.next()) {
            return Ok(Some(path));
        }
    }
    let known = names_in(&pipelines, reads)?;
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let (message, near) = match (name, &known[..]) {
        (None, []) => return Ok(None),
        (None, [only]) => return Ok(Some(pipelines.join(format!("{only}.toml")))),
        (None, _) => (
            format!(
                "there is no matrix.toml in {} or its {FOLDER}: name a matrix",
                root.display()
            ),
            None,
        ),
        (Some(name), _) => {
            let stem = Path::new(name)
                .file_name()
                .map_or_else(|| name.into(), |n| n.to_string_lossy());
            let stem = stem.trim_end_matches(".toml").to_owned();
            (
                format!("there is no matrix `{name}`"),
                nearest(&stem, known.iter().copied()),
            )
        }
    };
    Err(Error::invalid(Problem::new(message).help(match near {
        Some(near) => format!("did you mean `{near}`?"),
        None if name.is_some_and(|name| name.contains('/') && !name.ends_with(".toml")) => {
            "if it is a cell: --only CELL selects cells".to_owned()
        }
        None if root.join("matrix.toml").is_file() && known.is_empty() => {
            "the only matrix is matrix.toml".to_owned()
        }
        None if known.is_empty() => {
            "without a name, config.yaml implies one; `tprimat init --matrix` writes it".to_owned()
        }
        None => format!("{FOLDER} has {}", known.join(", ")),
    })))
}

/// The matrices of a folder, without `.toml`.
fn names_in(folder: &Path, reads: &ReadSet) -> Result<Vec<String>> {
    let entries = reads
        .list(folder)
        .map_err(Error::io("cannot read the folder", folder))?;
    Ok(entries
        .iter()
        .filter_map(|entry| Some(entry.name.to_str()?.strip_suffix(".toml")?.to_owned()))
        .collect())
}

/// What names each matrix file of a project on the command line.
#[must_use]
pub fn files(root: &Path) -> Vec<String> {
    let reads = ReadSet::default();
    let mut files = names_in(&root.join(FOLDER), &reads).unwrap_or_default();
    // Other TOML files may lie beside config.yaml.
    let is_matrix = |file: &String| {
        let text = crate::files::read_to_string(&root.join(format!("{file}.toml")));
        let table = text.ok().and_then(|text| text.parse::<toml::Table>().ok());
        table.is_some_and(|table| table.contains_key("matrix"))
    };
    let own = names_in(root, &reads).unwrap_or_default();
    files.extend(own.into_iter().filter(is_matrix));
    files
}

/// All matrix files of a project with the names that they state, else their own; `None` where a file
/// that may hold one cannot be read.
#[must_use]
pub fn named(root: &Path) -> Option<Vec<(PathBuf, String)>> {
    let mut named = Vec::new();
    for folder in [root.to_owned(), root.join(FOLDER)] {
        for file in names_in(&folder, &ReadSet::default()).ok()? {
            let path = folder.join(format!("{file}.toml"));
            if !path.is_file() {
                continue;
            }
            let text = crate::files::read_to_string(&path).ok()?;
            let written: toml::Table = toml::from_str(&text).ok()?;
            let name = written
                .get("matrix")
                .and_then(|matrix| matrix.get("name"))
                .and_then(toml::Value::as_str);
            let name = name.map_or(file, str::to_owned);
            named.push((path, name));
        }
    }
    Some(named)
}

/// The names of all matrices of a project; `None` where a file that may hold one cannot be read.
#[must_use]
pub fn names(root: &Path) -> Option<BTreeSet<String>> {
    Some(named(root)?.into_iter().map(|(_, name)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    fn find(name: Option<&str>, root: &Path) -> Result<Option<PathBuf>> {
        super::find(name, root, &ReadSet::default())
    }

    #[test]
    fn names_are_looked_up_as_the_design_says() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let touch =
            |path: &str| write_atomically(&root.join(path), b"", Durability::Plain).unwrap();
        let found = |name| {
            find(name, root)
                .unwrap()
                .map(|path| path.strip_prefix(root).unwrap().to_owned())
        };
        assert_eq!(found(None), None, "config.yaml implies one");
        touch("pipelines/quickstart.toml");
        assert_eq!(found(None), Some("pipelines/quickstart.toml".into()));
        touch("pipelines/other.toml");
        assert!(
            matches!(find(None, root), Err(Error::Invalid(p)) if p[0].help.as_deref() == Some("pipelines has other, quickstart"))
        );
        touch("pipelines/matrix.toml");
        assert_eq!(found(None), Some("pipelines/matrix.toml".into()));
        touch("matrix.toml");
        assert_eq!(found(None), Some("matrix.toml".into()));
        for name in ["quickstart", "quickstart.toml", "pipelines/quickstart.toml"] {
            assert_eq!(
                found(Some(name)),
                Some("pipelines/quickstart.toml".into()),
                "{name}"
            );
        }
        let Err(Error::Invalid(problems)) = find(Some("quikstart.toml"), root) else {
            panic!()
        };
        assert_eq!(problems[0].message, "there is no matrix `quikstart.toml`");
        assert_eq!(
            problems[0].help.as_deref(),
            Some("did you mean `quickstart`?")
        );
    }
}
