//! Which sources are in the digests that keys cover.

use std::{collections::BTreeSet, fs, path::Path};

use tprimat::graph::CodeDigests;

use crate::arrows::{ALLOWED, ROOT};

#[path = "../../sources.rs"]
mod sources;

use sources::{ANALYSIS, NATIVE, digest};

/// The crates of these paths, such as `crates/logs/src`.
fn crates_of<'a>(paths: &[&'a str]) -> BTreeSet<&'a str> {
    let name = |path: &&'a str| path.strip_prefix("crates/")?.strip_suffix("/src");
    paths.iter().filter_map(name).collect()
}

/// These crates, and all that they can call.
fn with_what_they_call(names: &[&'static str]) -> BTreeSet<&'static str> {
    let (mut seen, mut waiting) = (BTreeSet::new(), names.to_vec());
    while let Some(name) = waiting.pop() {
        let (_, called) = ALLOWED.iter().find(|(known, _)| *known == name).unwrap();
        if seen.insert(name) {
            waiting.extend(*called);
        }
    }
    seen
}

#[test]
fn all_crates_that_can_decide_a_value_are_of_the_analysis() {
    let derive = ["numbers", "report"];
    assert_eq!(crates_of(ANALYSIS), with_what_they_call(&derive));
    assert_eq!(crates_of(NATIVE), with_what_they_call(&["native"]));
    let built = CodeDigests::default();
    assert_eq!(built.analysis, digest(Path::new(ROOT), ANALYSIS));
    assert_eq!(built.native, digest(Path::new(ROOT), NATIVE));
}

struct Folder(tempfile::TempDir);

impl Folder {
    /// With a file at each path of the analysis and of the native trainer.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for path in ANALYSIS.iter().chain(NATIVE) {
            folder.write(&Self::file(path), "fn f() -> u8 { 1 }\n");
        }
        folder
    }

    fn file(path: &str) -> String {
        match Path::new(path).extension() {
            Some(_) => path.to_owned(),
            None => format!("{path}/one.rs"),
        }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn digests(&self) -> [String; 2] {
        [ANALYSIS, NATIVE].map(|paths| digest(self.0.path(), paths))
    }

    /// Which of the two change with this file: that of the analysis, that of the native trainer.
    fn changed_by(&self, name: &str, text: &str) -> [bool; 2] {
        let before = self.digests();
        self.write(name, text);
        let after = self.digests();
        [0, 1].map(|of| before[of] != after[of])
    }
}

#[test]
fn each_source_changes_the_digests_that_it_is_of_and_no_others() {
    let folder = Folder::new();
    let paths: BTreeSet<&str> = ANALYSIS.iter().chain(NATIVE).copied().collect();
    for path in paths {
        let of = [ANALYSIS, NATIVE].map(|paths| paths.contains(&path));
        let file = Folder::file(path);
        assert_eq!(
            folder.changed_by(&file, "fn f() -> u8 { 2 }\n"),
            of,
            "{path}"
        );
        if !path.contains('.') {
            let other = format!("{path}/tables/one.toml");
            assert_eq!(folder.changed_by(&other, "x = 1"), of, "{path}");
            // It says the same under another name, so the name counts.
            let moved = format!("{path}/tables/two.toml");
            assert_eq!(folder.changed_by(&moved, "x = 1"), of, "{path}");
        }
    }
    for other in [
        "README.md",
        "config.yaml",
        "src/cli/mod.rs",
        "src/plan/mod.rs",
        "src/cache/lib.rs",
        "src/cache/remote/mod.rs",
        "crates/logs/Cargo.toml",
        "recipes/tran/train.py",
    ] {
        assert_eq!(folder.changed_by(other, "x"), [false, false], "{other}");
    }
}

#[test]
fn no_comment_and_no_test_changes_a_digest() {
    let folder = Folder::new();
    let file = "crates/job/src/one.rs";
    for same in [
        "//! What it is for.\n\n/// One.\nfn f() -> u8 { 1 }\n",
        "fn f() -> u8 { 1 }\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n}\n",
    ] {
        assert_eq!(folder.changed_by(file, same), [false, false], "{same}");
    }
    for of_tests in [
        "tests.rs",
        "by_tests.rs",
        "one/tests/deep/case.rs",
        "snapshots/one.snap",
    ] {
        let file = format!("crates/job/src/{of_tests}");
        assert_eq!(folder.changed_by(&file, "x"), [false, false], "{file}");
    }
    for other in [
        "pub fn f() -> u8 { 1 }\n",
        "pub fn f() -> u8 { 1 } // one\n",
        "#[cfg(test)]\nmod tests;\npub fn f() -> u8 { 1 }\n",
        "#[cfg(test)]\nmod tests;\npub fn f() -> u8 { 2 }\n",
    ] {
        assert_eq!(folder.changed_by(file, other), [true, true], "{other}");
    }
    // Only what is Rust has comments.
    let kernel = "crates/native/src/kernel.cu";
    assert_eq!(folder.changed_by(kernel, "int f();\n"), [false, true]);
    assert_eq!(
        folder.changed_by(kernel, "int f();\n// one\n"),
        [false, true]
    );
}

#[test]
#[should_panic(expected = "src/import")]
fn a_path_that_is_not_there_is_an_error() {
    let folder = Folder::new();
    fs::remove_dir_all(folder.0.path().join("src/import")).unwrap();
    folder.digests();
}

/// A package from a registry has no crates beside it.
#[test]
fn in_a_package_what_is_there_counts() {
    let folder = Folder::new();
    fs::remove_dir_all(folder.0.path().join("crates")).unwrap();
    assert_eq!(
        folder.changed_by("src/import/one.rs", "fn f() {}\n"),
        [true, false]
    );
    assert_eq!(folder.changed_by("Cargo.lock", "other"), [true, false]);
}
