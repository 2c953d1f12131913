//! Which Python packages a trainer would import, read from the metadata that installers leave
//! beside the packages.
//!
//! No interpreter is started: a project names its own (`.venv`, `paths.python`), and planning a
//! stranger's project must not run the stranger's program. The folders are those that `site` puts
//! on `sys.path`, in that order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use super::checkout::state_around;
use crate::{
    error::{Error, Result},
    files::open_regular,
};

/// The headers of a METADATA file fit in here; its description need not.
const HEADERS: u64 = 64 << 10;

/// The installed version of each of `names`, by its name on the package index; `None`: not
/// installed.
pub fn python_packages(
    python: &Path,
    env: &BTreeMap<String, String>,
    names: &[&str],
) -> Result<BTreeMap<String, Option<String>>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let Folders {
        packages: folders, ..
    } = folders_of(python, env).map_err(|why| Error::Failed {
        message: format!("cannot find the packages of {}: {why}", python.display()),
        help: Some("name the interpreter itself with paths.python or $TPRIMAT_PYTHON".into()),
    })?;
    let wanted: BTreeSet<String> = names.iter().map(|name| normal(name)).collect();
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in &folders {
        for (name, metadata) in distributions(folder) {
            // As `sys.path` is searched: the first folder that has it counts.
            if wanted.contains(&name) {
                found.entry(name).or_insert(metadata);
            }
        }
    }
    let version = |name: &&str| found.get(&normal(name)).and_then(|path| version_in(path));
    Ok(names
        .iter()
        .map(|name| ((*name).to_owned(), version(name)))
        .collect())
}

/// Packages that an interpreter imports from where they are worked on (`pip install -e`), each with its
/// folder.
#[must_use]
pub fn editable_packages(python: &Path, env: &BTreeMap<String, String>) -> Vec<(String, PathBuf)> {
    let folders = package_folders(python, env);
    let all = folders.iter().flat_map(|folder| distributions(folder));
    // A folder may be listed twice, by its name and by a link's.
    let found: BTreeMap<_, _> = all
        .filter_map(|(name, metadata)| Some((name, editable_from(&metadata)?)))
        .collect();
    found.into_iter().collect()
}

/// The folder that a distribution is imported from, where it was not copied when it was installed.
fn editable_from(metadata: &Path) -> Option<PathBuf> {
    let origin = head_of(&metadata.parent()?.join("direct_url.json"))?;
    let origin: serde_json::Value = serde_json::from_str(&origin).ok()?;
    let folder = origin["url"].as_str()?.strip_prefix("file://")?;
    (origin["dir_info"]["editable"] == true).then(|| PathBuf::from(folder))
}

/// The folders in which an interpreter's packages are, as far as they can be found.
#[must_use]
pub fn package_folders(python: &Path, env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    folders_of(python, env).map_or_else(|_| Vec::new(), |folders| folders.packages)
}

/// The variable with the folders that Python searches first.
pub const PYTHONPATH: &str = "PYTHONPATH";

/// Which of `modules` no folder of the interpreter, nor of `PYTHONPATH`, seems to have, without starting it. A module
/// counts as there if a folder has a file or a folder of its name, or if a distribution says that
/// it installs it, as editable ones do.
pub fn absent_modules(
    python: &Path,
    env: &BTreeMap<String, String>,
    modules: &[String],
) -> Result<Vec<String>, String> {
    let Folders {
        packages: mut folders,
        library,
    } = folders_of(python, env)?;
    let has_own_library =
        |folder: &PathBuf| folder.ends_with("site-packages") || folder.ends_with("dist-packages");
    let libraries: Vec<PathBuf> = folders
        .iter()
        .filter(|f| has_own_library(f))
        .filter_map(|f| Some(f.parent()?.to_owned()))
        .collect();
    let libraries = libraries.into_iter().chain(library);
    folders.extend(libraries.flat_map(|lib| [lib.join("lib-dynload"), lib]));
    folders.extend(
        env.get(PYTHONPATH)
            .into_iter()
            .flat_map(std::env::split_paths),
    );
    let declared: BTreeSet<String> = folders
        .iter()
        .flat_map(|folder| declared_modules(folder))
        .collect();
    let is_there = |module: &String| {
        let top = module.split('.').next().unwrap_or(module);
        declared.contains(top)
            || folders
                .iter()
                .any(|folder| has_module(folder, &module.replace('.', "/")))
    };
    Ok(modules
        .iter()
        .filter(|module| !is_there(module))
        .cloned()
        .collect())
}

fn has_module(folder: &Path, name: &str) -> bool {
    let path = folder.join(name);
    if path.is_dir() || path.with_extension("py").is_file() {
        return true;
    }
    let (Some(parent), Some(stem)) = (
        path.parent(),
        path.file_name().and_then(|name| name.to_str()),
    ) else {
        return false;
    };
    let is_extension = |name: &str| name.ends_with(".so") && name.split('.').next() == Some(stem);
    fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .any(|e| e.file_name().to_str().is_some_and(is_extension))
}

/// The modules that distributions of a folder say they install.
fn declared_modules(folder: &Path) -> Vec<String> {
    let mut declared = Vec::new();
    for (name, metadata) in distributions(folder) {
        declared.push(name.replace('-', "_"));
        let list = metadata
            .parent()
            .and_then(|info| head_of(&info.join("top_level.txt")));
        declared.extend(
            list.iter()
                .flat_map(|text| text.split_whitespace())
                .map(str::to_owned),
        );
    }
    declared
}

/// The first executable file of that name in the caller's PATH.
#[must_use]
pub fn which(name: &str, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_executable = |p: &PathBuf| {
        p.metadata()
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    env.get("PATH")?
        .split(':')
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(dir).join(name))
        .find(is_executable)
}

/// Where an interpreter looks.
struct Folders {
    /// For packages, in the order of `sys.path`.
    packages: Vec<PathBuf>,
    /// For its standard library; of a virtual environment that of the interpreter it was made with.
    library: Option<PathBuf>,
}

/// In words why they cannot be found, if not.
fn folders_of(python: &Path, env: &BTreeMap<String, String>) -> Result<Folders, String> {
    let python = match python.to_str() {
        Some(name) if !name.contains('/') => which(name, env).ok_or("it is not in PATH")?,
        _ => python.to_owned(),
    };
    let python = behind_shim(&python, env).unwrap_or(python);
    let bin = python.parent().ok_or("it is not a file")?;
    let prefix = bin.parent().ok_or("it is not a file")?;
    let user = env.get("HOME").map(PathBuf::from);
    let settings = [prefix.join("pyvenv.cfg"), bin.join("pyvenv.cfg")];
    let Some(settings) = settings.iter().find_map(|path| head_of(path)) else {
        return system_folders(&python, user.as_deref()).map(with_linked);
    };
    let version = only_version(prefix).ok_or("its virtual environment has no lib/python3.*")?;
    let home = setting(&settings, "home").map(Path::new);
    let base = home.and_then(Path::parent);
    let mut folders = Folders {
        packages: below(prefix, &version),
        library: base.and_then(|base| library_of(base, &version)),
    };
    if setting(&settings, "include-system-site-packages")
        .is_some_and(|on| on.eq_ignore_ascii_case("true"))
    {
        let home = home.ok_or("pyvenv.cfg has no home")?;
        let system = system_folders(&home.join("python3"), user.as_deref())?;
        folders.packages.extend(system.packages);
    }
    Ok(with_linked(folders))
}

/// The folders that are there, each followed by those that its `.pth` files name.
fn with_linked(folders: Folders) -> Folders {
    let mut packages: Vec<PathBuf> = Vec::new();
    for folder in folders.packages {
        let linked = folders_named_in(&folder);
        for folder in std::iter::once(folder).chain(linked) {
            if folder.is_dir() && !packages.contains(&folder) {
                packages.push(folder);
            }
        }
    }
    Folders {
        packages,
        library: folders.library,
    }
}

/// Names the folder from which upwards a version manager looks for the file that states a version.
pub const PYENV_DIR: &str = "PYENV_DIR";

/// A program that puts shims into PATH and keeps the releases of Python beside them.
struct VersionManager {
    /// Where the releases are, beside the folder of the shims.
    releases: &'static str,
    /// Variables that state the version.
    variables: &'static [&'static str],
    /// Files of a folder that state the version for all that is below it.
    files: &'static [&'static str],
}

/// pyenv; asdf and mise, which differ in what they read besides `.tool-versions`.
const VERSION_MANAGERS: [VersionManager; 2] = [
    VersionManager {
        releases: "versions",
        variables: &["PYENV_VERSION"],
        files: &[".python-version"],
    },
    VersionManager {
        releases: "installs/python",
        variables: &["ASDF_PYTHON_VERSION", "MISE_PYTHON_VERSION"],
        files: &["mise.toml", ".tool-versions", ".config/mise/config.toml"],
    },
];

/// The interpreter that a command starts: the same path, or what a version manager's shim of that
/// name leads to. Nothing is started to find it.
#[must_use]
pub fn followed(python: PathBuf, env: &BTreeMap<String, String>) -> PathBuf {
    let found = match python.to_str() {
        Some(name) if !name.contains('/') => which(name, env),
        _ => Some(python.clone()),
    };
    let behind = found.and_then(|path| behind_shim(&path, env));
    behind.unwrap_or(python)
}

/// Found as the version managers find it: by a variable, by the nearest file that states a version,
/// by the version for all of the user's shells. `None`: not a shim, or its version has no such
/// program.
fn behind_shim(shim: &Path, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let shims = shim.parent().filter(|folder| folder.ends_with("shims"))?;
    let (root, name) = (shims.parent()?, shim.file_name()?);
    let has_releases = |manager: &&VersionManager| root.join(manager.releases).is_dir();
    let manager = VERSION_MANAGERS.iter().find(has_releases)?;
    let stated = || manager.variables.iter().find_map(|v| env.get(*v).cloned());
    let in_folder = |folder: &Path| {
        let mut files = manager.files.iter().map(|file| folder.join(file));
        files.find_map(|file| stated_version(&file))
    };
    let nearest = || {
        Path::new(env.get(PYENV_DIR)?)
            .ancestors()
            .find_map(in_folder)
    };
    let of_user = || in_folder(Path::new(env.get("HOME")?));
    let text = stated()
        .or_else(nearest)
        .or_else(|| stated_version(&root.join("version")))
        .or_else(of_user)?;
    let releases = root.join(manager.releases);
    let mut versions = text.split([':', '\n', ' ']).filter(|v| !v.is_empty());
    versions.find_map(|version| {
        if version == "system" {
            let path = env.get("PATH")?.split(':');
            let others: Vec<&str> = path.filter(|dir| Path::new(dir) != shims).collect();
            let others = [("PATH".to_owned(), others.join(":"))].into();
            return which(name.to_str()?, &others);
        }
        let release = release_of(&releases, version)?;
        Some(release.join("bin").join(name)).filter(|path| path.is_file())
    })
}

/// The version of Python that a file of a version manager states.
fn stated_version(file: &Path) -> Option<String> {
    let text = head_of(file)?;
    if file.extension().is_some_and(|end| end == "toml") {
        let table: toml::Table = text.parse().ok()?;
        return Some(table.get("tools")?.get("python")?.as_str()?.to_owned());
    }
    if !file.ends_with(".tool-versions") {
        return Some(text);
    }
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix("python ")?.to_owned()))
}

/// The folder of a release; `3.12` stands for the latest one of it that is installed.
fn release_of(releases: &Path, version: &str) -> Option<PathBuf> {
    let exact = releases.join(version);
    if exact.is_dir() {
        return Some(exact);
    }
    let patch =
        |name: &str| -> Option<u32> { name.strip_prefix(version)?.strip_prefix('.')?.parse().ok() };
    let installed = fs::read_dir(releases).ok()?.flatten();
    let names = installed.filter_map(|entry| entry.file_name().into_string().ok());
    let (_, latest) = names.filter_map(|name| Some((patch(&name)?, name))).max()?;
    Some(releases.join(latest))
}

/// The folders of an interpreter that belongs to no virtual environment.
fn system_folders(python: &Path, home: Option<&Path>) -> Result<Folders, String> {
    let real = python.canonicalize().map_err(|e| e.to_string())?;
    if head_of(&real).is_some_and(|text| text.starts_with("#!")) {
        return Err(format!(
            "{} is a script that starts some interpreter",
            real.display()
        ));
    }
    let prefix = real.parent().and_then(Path::parent);
    let prefix = prefix.ok_or("it is not in a bin folder")?;
    let name = real.file_name().and_then(|name| name.to_str());
    let named = name.and_then(|name| name.strip_prefix("python"));
    let version = match named.ok_or("it is not called python")? {
        version if is_version(version) => version.to_owned(),
        _ => only_version(prefix).ok_or("no lib/python3.* is beside it")?,
    };
    let library = library_of(prefix, &version);
    let library = library.ok_or_else(|| format!("no lib/python{version} is beside it"))?;
    let of_user = home.map(|home| home.join(".local"));
    let prefixes = of_user
        .into_iter()
        .chain([prefix.join("local"), prefix.to_owned()]);
    Ok(Folders {
        packages: prefixes
            .flat_map(|prefix| below(&prefix, &version))
            .collect(),
        library: Some(library),
    })
}

fn library_of(prefix: &Path, version: &str) -> Option<PathBuf> {
    let folders = ["lib", "lib64"].map(|lib| prefix.join(lib).join(format!("python{version}")));
    folders
        .into_iter()
        .find(|folder| folder.join("os.py").is_file())
}

/// Where packages are below a prefix. Debian puts them into dist-packages, and pip's below `local`;
/// Fedora's pip does the latter as well.
fn below(prefix: &Path, version: &str) -> Vec<PathBuf> {
    [
        format!("lib/python{version}/site-packages"),
        format!("lib64/python{version}/site-packages"),
        format!("lib/python{version}/dist-packages"),
        "lib/python3/dist-packages".to_owned(),
    ]
    .map(|folder| prefix.join(folder))
    .into()
}

/// `3.12`, and `3.13t`.
fn is_version(text: &str) -> bool {
    text.strip_prefix("3.").is_some_and(|minor| {
        let digits = minor.trim_end_matches('t');
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The version of the one Python whose library is below `prefix`.
fn only_version(prefix: &Path) -> Option<String> {
    let mut versions = BTreeSet::new();
    for lib in ["lib", "lib64"] {
        for entry in fs::read_dir(prefix.join(lib))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix("python"));
            versions.extend(
                version
                    .filter(|version| is_version(version))
                    .map(str::to_owned),
            );
        }
    }
    versions.pop_first().filter(|_| versions.is_empty())
}

/// Folders that `.pth` files add to the path, as editable installs do. Their lines of code are not
/// run.
fn folders_named_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "pth"));
    files.sort();
    let texts = files.iter().filter_map(|path| head_of(path));
    let lines: Vec<String> = texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let is_path = |line: &&String| {
        !line.trim().is_empty() && !line.starts_with(['#']) && !line.starts_with("import")
    };
    lines
        .iter()
        .filter(is_path)
        .map(|line| folder.join(line.trim_end()))
        .collect()
}

/// Normal name → where its version stands, for every distribution of a folder.
fn distributions(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((stem, end)) = name.to_str().and_then(|name| name.rsplit_once('.')) else {
            continue;
        };
        let path = entry.path();
        let metadata = match end {
            "dist-info" => path.join("METADATA"),
            "egg-info" if path.is_dir() => path.join("PKG-INFO"),
            "egg-info" => path,
            _ => continue,
        };
        found.push((normal(stem.split('-').next().unwrap_or(stem)), metadata));
    }
    // Two versions of one package beside each other are a broken install; the answer must at least
    // not change.
    found.sort();
    found
}

/// As the package index compares names: `flash-attn`, `flash_attn` and `Flash.Attn` are one.
fn normal(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if normal.ends_with('-') => {}
            '-' | '_' | '.' => normal.push('-'),
            c => normal.push(c.to_ascii_lowercase()),
        }
    }
    normal
}

/// The version that a METADATA file states. It reaches the screen and tprimat.lock, so it must look
/// like one.
fn version_in(metadata: &Path) -> Option<String> {
    let text = head_of(metadata)?;
    let headers = text.lines().take_while(|line| !line.trim().is_empty());
    let version = headers
        .filter_map(|line| line.split_once(':'))
        .find(|(n, _)| n.eq_ignore_ascii_case("version"))?
        .1;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".+-_!".contains(c);
    let version = version.trim();
    if version.is_empty() || version.len() > 100 || !version.chars().all(is_plain) {
        return None;
    }
    // One that is worked on changes under its version.
    let state = editable_from(metadata).and_then(|folder| state_around(&folder).ok()?);
    Some(state.map_or_else(
        || version.to_owned(),
        |state| format!("{version}+commit.{state}"),
    ))
}

fn setting<'t>(settings: &'t str, name: &str) -> Option<&'t str> {
    settings
        .lines()
        .filter_map(|line| line.split_once('='))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, v)| v.trim())
}

/// The beginning of a file, as text.
fn head_of(path: &Path) -> Option<String> {
    let (file, _) = open_regular(path).ok()?;
    let mut bytes = Vec::new();
    file.take(HEADERS).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
