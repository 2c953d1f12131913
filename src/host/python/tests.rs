use super::*;
use crate::files::{Durability, write_atomically};

fn write(root: &Path, name: &str, text: &str) {
    write_atomically(&root.join(name), text.as_bytes(), Durability::Plain).unwrap();
}

fn version(python: &Path, name: &str) -> Option<String> {
    python_packages(python, &BTreeMap::new(), &[name]).unwrap()[name].clone()
}

fn environment() -> BTreeMap<String, String> {
    ["PATH", "HOME"]
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}

#[test]
fn a_program_that_is_no_python_is_an_error() {
    let env = environment();
    for program in ["/no/such/python", "/bin/true", "no-such-python"] {
        let error = python_packages(Path::new(program), &env, &["torch"]).unwrap_err();
        assert!(error.to_string().contains(program), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "bin/python3",
        "#!/bin/sh\nexec python3.12 \"$@\"\n",
    );
    let error = python_packages(&folder.path().join("bin/python3"), &env, &["torch"]).unwrap_err();
    assert!(error.to_string().contains("is a script"), "{error}");
    assert!(
        python_packages(Path::new("/no/such/python"), &env, &[])
            .unwrap()
            .is_empty(),
        "nothing to ask"
    );
}

#[test]
fn versions_are_read_as_the_index_compares_names() {
    let folder = tempfile::tempdir().unwrap();
    let (root, site) = (folder.path(), "lib/python3.12/site-packages");
    write(
        root,
        "pyvenv.cfg",
        "home = /usr/bin\ninclude-system-site-packages = false\n",
    );
    write(
        root,
        &format!("{site}/flash_attn-2.7.dist-info/METADATA"),
        "Name: x\nVersion: 2.7+cu12\n\nVersion: 9\n",
    );
    write(
        root,
        &format!("{site}/Old.Style-1.egg-info/PKG-INFO"),
        "Version: 1.0\n",
    );
    write(
        root,
        &format!("{site}/evil-1.dist-info/METADATA"),
        "Version: 1\u{1b}]0;x\u{7}\n",
    );
    write(
        root,
        &format!("{site}/_editable.pth"),
        "# a comment\nimport os; os.abort()\n../../../source\n",
    );
    write(root, "source/mine.egg-info/PKG-INFO", "Version: 0.1\n");
    let python = root.join("bin/python");
    assert_eq!(version(&python, "Flash-Attn").as_deref(), Some("2.7+cu12"));
    assert_eq!(version(&python, "old-style").as_deref(), Some("1.0"));
    assert_eq!(version(&python, "mine").as_deref(), Some("0.1"));
    assert_eq!(
        version(&python, "evil"),
        None,
        "what is no version is not shown"
    );
    assert_eq!(version(&python, "torch"), None);
}

/// The oracle is the interpreter itself: it finds those modules that its folders seem to have,
/// and no other.
#[test]
fn modules_are_there_where_the_interpreter_finds_them() {
    const PROGRAM: &str = "import sys, importlib.util as u\nprint(*[m for m in sys.argv[1:] if u.find_spec(m) is None])";
    let env = environment();
    let names = [
        "json",
        "ctypes",
        "torch",
        "transformers",
        "accelerate",
        "numpy",
        "yaml",
        "nemo",
        "no_module_is_called_so",
    ];
    let modules: Vec<String> = names.map(str::to_owned).to_vec();
    for (is_optional, name) in [(false, "python3"), (true, "/usr/bin/python3")] {
        let absent = match absent_modules(Path::new(name), &env, &modules) {
            Err(_) if is_optional => continue,
            absent => absent.unwrap(),
        };
        let output = std::process::Command::new(name)
            .args(["-E", "-c", PROGRAM])
            .args(names)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>();
        assert_eq!(absent, told, "{name}");
    }
}

/// The oracle is the interpreter itself, which the caller's PATH names: all that it knows is
/// read alike.
#[test]
fn every_version_is_what_the_interpreter_says() {
    const PROGRAM: &str = "import sys, json\nsys.path = [p for p in sys.path if p]\nfrom importlib import metadata\n\
        names = {d.metadata['Name'] for d in metadata.distributions()}\n\
        print(json.dumps({n: metadata.version(n) for n in names if n}))";
    let env = environment();
    let mut asked = 0;
    for (is_optional, name) in [(false, "python3"), (true, "/usr/bin/python3")] {
        let Folders { packages, .. } = match folders_of(Path::new(name), &env) {
            Err(_) if is_optional => continue,
            folders => folders.unwrap(),
        };
        assert!(!packages.is_empty(), "{name}");
        let output = std::process::Command::new(name)
            .args(["-E", "-c", PROGRAM])
            .output()
            .unwrap();
        let known: BTreeMap<String, String> = serde_json::from_slice(&output.stdout).unwrap();
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let read = python_packages(Path::new(name), &env, &names).unwrap();
        let told: BTreeMap<String, Option<String>> =
            known.into_iter().map(|(n, v)| (n, Some(v))).collect();
        assert_eq!(read, told, "{name}");
        asked += read.len();
    }
    assert!(asked > 0, "no interpreter has a package to compare");
}

#[test]
fn a_shim_of_pyenv_leads_to_the_interpreter_that_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (root, project) = (folder.path().join("pyenv"), folder.path().join("p"));
    write(
        &root,
        "shims/python3",
        "#!/usr/bin/env bash\nexec pyenv exec\n",
    );
    write(&root, "version", "3.11.2\n");
    write(&project, ".python-version", "3.12\n");
    for (release, torch) in [("3.11.2", "2.9"), ("3.12.9", "2.10"), ("3.12.10", "2.11")] {
        let of = root.join("versions").join(release);
        let minor = &release[..4];
        write(&of, "bin/python3", "");
        write(&of, &format!("lib/python{minor}/os.py"), "");
        let metadata = format!("lib/python{minor}/site-packages/torch-{torch}.dist-info/METADATA");
        write(&of, &metadata, &format!("Version: {torch}\n"));
    }
    let shim = root.join("shims/python3");
    let asked = |env: &[(&str, &str)]| {
        let env = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        python_packages(&shim, &env.collect(), &["torch"])
            .map(|found| found["torch"].clone().unwrap())
    };
    let inside = project.join("deep");
    let inside = (PYENV_DIR, inside.to_str().unwrap());
    assert_eq!(asked(&[]).unwrap(), "2.9");
    assert_eq!(asked(&[inside]).unwrap(), "2.11");
    assert_eq!(
        asked(&[inside, ("PYENV_VERSION", "3.12.9")]).unwrap(),
        "2.10"
    );
    assert!(
        asked(&[("PYENV_VERSION", "3.9")])
            .unwrap_err()
            .to_string()
            .contains("is a script")
    );
}

/// asdf and mise: the shims of the latter are links to one program, whose name says nothing.
#[test]
fn the_shims_of_other_version_managers_are_followed_by_their_files() {
    for (file, text) in [
        (".tool-versions", "nodejs 22.1.0\npython 3.12.9 3.11.2\n"),
        ("mise.toml", "[tools]\npython = \"3.12\"\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (root, project) = (folder.path().join("manager"), folder.path().join("p"));
        write(&root, "bin/manager", "");
        write(&root, "shims/other", "");
        std::os::unix::fs::symlink("../bin/manager", root.join("shims/python3")).unwrap();
        write(&root, "installs/python/3.12.9/bin/python3", "");
        write(&project, file, text);
        let asked = |env: &[(&str, &Path)]| {
            let env = env.iter();
            let env = env.map(|(n, v)| ((*n).to_owned(), v.to_str().unwrap().to_owned()));
            followed(root.join("shims/python3"), &env.collect())
        };
        let python = root.join("installs/python/3.12.9/bin/python3");
        assert_eq!(asked(&[(PYENV_DIR, &project)]), python, "{file}");
        assert_eq!(asked(&[("HOME", &project)]), python, "{file}");
        let version = ("ASDF_PYTHON_VERSION", Path::new("3.12.9"));
        assert_eq!(asked(&[version]), python, "{file}");
        assert_eq!(
            asked(&[]),
            root.join("shims/python3"),
            "no version is stated"
        );
    }
    assert_eq!(
        followed("/usr/bin/python3".into(), &BTreeMap::new()),
        Path::new("/usr/bin/python3")
    );
}
