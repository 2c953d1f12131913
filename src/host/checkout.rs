//! What somebody else's repository on this host is, as keys know it: its commit, and what was changed on top of it.

use std::{collections::BTreeMap, path::Path};

use crate::{
    digest::Digest,
    error::{Error, Result},
};

/// Facts of the checkout at `dir`: `commit`, and `dirty` where tracked files differ from it or untracked ones lie beside
/// them. Where `dir` is no git repository of its own, `content`, the digest of `file`, stands in. Empty: not there.
pub fn checkout_facts(dir: &Path, file: &str) -> Result<BTreeMap<String, String>> {
    let marker = dir.join(file);
    if !marker.is_file() {
        return Ok(BTreeMap::new());
    }
    let Some(commit) = own_commit(dir) else {
        let digest = Digest::of_file(&marker).map_err(Error::io("cannot read the checkout's file", &marker))?;
        return Ok([("content".to_owned(), digest.to_string())].into());
    };
    let mut facts = BTreeMap::from([("commit".to_owned(), commit)]);
    facts.extend(changes(dir)?.map(|digest| ("dirty".to_owned(), digest.to_string())));
    Ok(facts)
}

/// The commit, if `dir` is the top of a repository; a plain copy inside another repository has that one's, which says
/// nothing of it.
fn own_commit(dir: &Path) -> Option<String> {
    let below = git(dir, &["rev-parse", "--show-prefix"])?;
    let commit = git(dir, &["rev-parse", "--verify", "HEAD"]).filter(|_| below.trim_ascii().is_empty())?;
    Some(String::from_utf8_lossy(&commit).trim().to_owned())
}

/// Digest of every change that is not committed, in submodules too; `None`: as committed.
fn changes(dir: &Path) -> Result<Option<Digest>> {
    let failed = || Error::Failed {
        message: format!("git cannot say what was changed in {}", dir.display()),
        help: Some("`git -C DIR diff HEAD` must work there".into()),
    };
    let diff = ["diff", "HEAD", "--binary", "--submodule=diff", "--no-ext-diff", "--no-textconv", "--no-color"];
    let mut text = git(dir, &diff).ok_or_else(failed)?;
    let untracked = git(dir, &["ls-files", "--others", "--exclude-standard", "-z"]).ok_or_else(failed)?;
    for name in String::from_utf8_lossy(&untracked).split('\0').filter(|name| !name.is_empty()) {
        // A file that vanishes while it is looked at was no input.
        if let Ok(digest) = Digest::of_file(&dir.join(name)) {
            text.extend_from_slice(format!("\nuntracked {name} {digest}\n").as_bytes());
        }
    }
    Ok((!text.is_empty()).then(|| Digest::of(&text)))
}

/// Standard output of a git command that ended well. Where a container's user is not the owner, git must be told to trust.
fn git(dir: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let command = duct::cmd("git", ["-c", "safe.directory=*"].iter().chain(arguments));
    let clean = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_EXTERNAL_DIFF"];
    let command = clean.iter().fold(command.dir(dir), |command, name| command.env_remove(name));
    let output = command.env("GIT_OPTIONAL_LOCKS", "0").stdin_null().stdout_capture().stderr_null().unchecked().run();
    output.ok().filter(|o| o.status.success()).map(|o| o.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    fn write(dir: &Path, name: &str, text: &str) {
        write_atomically(&dir.join(name), text.as_bytes(), Durability::Plain).unwrap();
    }

    fn repository(dir: &Path) {
        write(dir, "train.py", "print(1)\n");
        write(dir, ".gitignore", "*.so\n");
        let identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"];
        for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "x"]] {
            let all: Vec<_> = identity.iter().chain(arguments).collect();
            git(dir, &all.into_iter().copied().collect::<Vec<_>>()).expect("git works here");
        }
    }

    #[test]
    fn a_commit_and_every_change_on_top_of_it_are_facts() {
        let dir = tempfile::tempdir().unwrap();
        assert!(checkout_facts(dir.path(), "train.py").unwrap().is_empty(), "nothing there");
        repository(dir.path());
        let clean = checkout_facts(dir.path(), "train.py").unwrap();
        assert_eq!(clean.keys().collect::<Vec<_>>(), ["commit"]);
        assert_eq!(clean["commit"].len(), 40);

        write(dir.path(), "built.so", "ignored");
        assert_eq!(checkout_facts(dir.path(), "train.py").unwrap(), clean, "what git ignores is a build product");
        write(dir.path(), "train.py", "print(2)\n");
        let edited = checkout_facts(dir.path(), "train.py").unwrap();
        assert_eq!(edited["commit"], clean["commit"]);
        write(dir.path(), "more.py", "x = 1\n");
        let more = checkout_facts(dir.path(), "train.py").unwrap();
        write(dir.path(), "more.py", "x = 2\n");
        let other = checkout_facts(dir.path(), "train.py").unwrap();
        assert!(edited["dirty"] != more["dirty"] && more["dirty"] != other["dirty"]);
    }

    #[test]
    fn what_is_no_repository_of_its_own_is_known_by_its_file() {
        let outer = tempfile::tempdir().unwrap();
        repository(outer.path());
        let copy = outer.path().join("copy");
        write(&copy, "train.py", "print(1)\n");
        let facts = checkout_facts(&copy, "train.py").unwrap();
        assert_eq!(facts, BTreeMap::from([("content".to_owned(), Digest::of("print(1)\n").to_string())]));
    }

    #[test]
    fn a_change_inside_a_submodule_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, outer) = (dir.path().join("inner"), dir.path().join("outer"));
        repository(&inner);
        repository(&outer);
        let add = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", inner.to_str().unwrap(), "sub"];
        git(&outer, &add).expect("git works here");
        let commit = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false", "commit", "-qm", "s"];
        git(&outer, &commit).expect("git works here");
        assert!(!checkout_facts(&outer, "train.py").unwrap().contains_key("dirty"));
        write(&outer.join("sub"), "train.py", "print(3)\n");
        let one = checkout_facts(&outer, "train.py").unwrap()["dirty"].clone();
        write(&outer.join("sub"), "train.py", "print(4)\n");
        assert_ne!(checkout_facts(&outer, "train.py").unwrap()["dirty"], one);
    }
}
