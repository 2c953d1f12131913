//! The sources of one crate, as far as they decide what it computes.
//!
//! Rust files count as tokens, so comments, documentation and formatting are not in the digest, and
//! only files that the crate's modules lead to, so tests are not. Whatever else lies below `src`
//! (tables, templates, kernels) counts byte by byte.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::tokens::{self, Module};

/// BLAKE3 of the crate whose `src` folder this is, in hexadecimal digits.
///
/// # Panics
///
/// Where a source cannot be read or is not Rust.
#[must_use]
pub fn digest(src: &Path) -> String {
    let mut crate_of = Crate {
        src,
        hasher: blake3::Hasher::new(),
        rust: BTreeSet::new(),
        tests: BTreeSet::new(),
    };
    let root = ["lib.rs", "main.rs", "mod.rs"]
        .into_iter()
        .find(|name| src.join(name).is_file());
    crate_of.module(Path::new(
        root.unwrap_or_else(|| panic!("{} has no lib.rs", src.display())),
    ));
    for file in crate_of.other_files(Path::new("")) {
        crate_of.add(&file, &read(&src.join(&file)));
    }
    crate_of.hasher.finalize().to_hex().to_string()
}

struct Crate<'a> {
    src: &'a Path,
    hasher: blake3::Hasher,
    /// Files that were read as modules.
    rust: BTreeSet<PathBuf>,
    /// Modules that only tests have, without `.rs`.
    tests: BTreeSet<PathBuf>,
}

impl Crate<'_> {
    /// Adds the file and, in the order of their declarations, the modules that it declares.
    fn module(&mut self, file: &Path) {
        let text = String::from_utf8(read(&self.src.join(file)))
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let (text, modules) =
            tokens::normalised(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.add(file, text.as_bytes());
        self.rust.insert(file.to_owned());
        let is_folder_of_its_own = ["lib.rs", "main.rs", "mod.rs"]
            .iter()
            .any(|name| file.ends_with(name));
        let folder = if is_folder_of_its_own {
            file.parent().unwrap_or(file).to_owned()
        } else {
            file.with_extension("")
        };
        for Module { path, is_test } in modules {
            let place = folder.join(path);
            if is_test {
                self.tests.insert(place);
                continue;
            }
            let candidates = [place.with_extension("rs"), place.join("mod.rs")];
            let found = candidates
                .iter()
                .find(|candidate| self.src.join(candidate).is_file());
            self.module(found.unwrap_or_else(|| {
                panic!(
                    "{} declares {}, which is not there",
                    file.display(),
                    place.display()
                )
            }));
        }
    }

    fn add(&mut self, file: &Path, bytes: &[u8]) {
        self.hasher.update(file.display().to_string().as_bytes());
        self.hasher.update(blake3::hash(bytes).as_bytes());
    }

    /// Files below `folder` that are not Rust and that tests do not own, sorted.
    fn other_files(&self, folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.src.join(folder))
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names
            .filter(|name| !name.starts_with('.') && name != "snapshots")
            .collect();
        names.sort();
        let mut files = Vec::new();
        for path in names.iter().map(|name| folder.join(name)) {
            if self.src.join(&path).is_dir() {
                if !self.tests.contains(&path) {
                    files.extend(self.other_files(&path));
                }
            } else if path.extension().is_none_or(|extension| extension != "rs") {
                files.push(path);
            }
        }
        files
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            files
                .iter()
                .for_each(|(name, text)| folder.write(name, text));
            folder
        }
        #[expect(clippy::disallowed_methods, reason = "a test's own files")]
        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fn digest(&self) -> String {
            digest(self.0.path())
        }
    }

    #[test]
    fn only_what_the_modules_lead_to_and_what_they_may_include_counts() {
        let folder = Folder::new(&[
            ("lib.rs", "mod a; #[cfg(test)] mod tests;"),
            (
                "a.rs",
                "mod b; const T: &str = include_str!(\"table.toml\");",
            ),
            ("a/b.rs", "fn f() -> u8 { 1 }"),
            ("table.toml", "x = 1"),
            ("tests.rs", "fn t() {}"),
            ("tests/case.txt", "1"),
            ("snapshots/one.snap", "1"),
            ("stray.rs", "this is not Rust {"),
        ]);
        let before = folder.digest();
        for (name, text) in [
            ("tests.rs", "fn t() { 1; }"),
            ("tests/case.txt", "2"),
            ("snapshots/one.snap", "2"),
            ("stray.rs", "{"),
            ("a/b.rs", "/// One.\nfn f() -> u8 {\n    1 // one\n}"),
        ] {
            folder.write(name, text);
            assert_eq!(folder.digest(), before, "{name}");
        }
        for (name, text) in [("a/b.rs", "fn f() -> u8 { 2 }"), ("table.toml", "x = 2")] {
            let before = folder.digest();
            folder.write(name, text);
            assert_ne!(folder.digest(), before, "{name}");
        }
    }

    #[test]
    #[should_panic(expected = "declares a")]
    fn a_module_that_is_not_there_is_an_error() {
        Folder::new(&[("lib.rs", "mod a;")]).digest();
    }

    #[test]
    fn what_a_crate_depends_on_is_in_its_digest() {
        let code = |text: &str| vec![("logs".to_owned(), text.to_owned())];
        let before = crate::folded("own", code("1"));
        assert_eq!(crate::folded("own", code("1")), before);
        assert!(
            crate::folded("own", code("2")) != before
                && crate::folded("other", code("1")) != before
        );
        assert_ne!(crate::folded("own", []), before);
    }
}
