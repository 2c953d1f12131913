use super::*;

fn write(dir: &Path, name: &str, text: &str) {
    write_atomically(&dir.join(name), text.as_bytes(), Durability::Plain).unwrap();
}

/// Git as people start it, with all of the repository's settings.
fn git(dir: &Path, arguments: &[&str]) -> Vec<u8> {
    let identity = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "-c",
        "commit.gpgsign=false",
    ];
    let command = duct::cmd("git", identity.iter().chain(arguments))
        .dir(dir)
        .stdout_capture();
    command.run().expect("git works here").stdout
}

fn repository(dir: &Path) {
    write(dir, "train.py", "print(1)\n");
    write(dir, ".gitignore", "*.so\n");
    for arguments in [
        &["init", "-q"][..],
        &["add", "."],
        &["commit", "-q", "-m", "x"],
    ] {
        git(dir, arguments);
    }
}

fn facts(dir: &Path) -> BTreeMap<String, String> {
    checkout_facts(dir, "train.py").unwrap()
}

#[test]
fn a_commit_and_every_change_on_top_of_it_are_facts() {
    let dir = tempfile::tempdir().unwrap();
    assert!(facts(dir.path()).is_empty(), "nothing there");
    repository(dir.path());
    let clean = facts(dir.path());
    assert_eq!(clean.keys().collect::<Vec<_>>(), ["commit"]);
    assert_eq!(
        clean["commit"],
        String::from_utf8(git(dir.path(), &["rev-parse", "HEAD"]))
            .unwrap()
            .trim()
    );

    write(dir.path(), "built.so", "ignored");
    write(dir.path(), ".git/info/exclude", "notes\n");
    write(dir.path(), "notes", "excluded");
    assert_eq!(
        facts(dir.path()),
        clean,
        "what git ignores is a build product"
    );
    write(dir.path(), "train.py", "print(2)\n");
    let edited = facts(dir.path());
    assert_eq!(edited["commit"], clean["commit"]);
    // The digest is of what git itself prints, so that what was measured before keeps its key.
    let text = git(
        dir.path(),
        &["diff", "HEAD", "--binary", "--submodule=diff"],
    );
    assert_eq!(edited["dirty"], Digest::of(&text).to_string());
    write(dir.path(), "more.py", "x = 1\n");
    let more = facts(dir.path());
    write(dir.path(), "more.py", "x = 2\n");
    let other = facts(dir.path());
    assert!(edited["dirty"] != more["dirty"] && more["dirty"] != other["dirty"]);
}

#[test]
fn marks_in_the_index_and_lists_of_the_user_hide_no_edit() {
    let dir = tempfile::tempdir().unwrap();
    let (path, kept) = (dir.path(), ["train.py", "left.py", "sparse.py"]);
    kept.iter().for_each(|name| write(path, name, "print(0)\n"));
    repository(path);
    let clean = facts(path);
    git(path, &["update-index", "--assume-unchanged", "train.py"]);
    git(
        path,
        &["update-index", "--skip-worktree", "left.py", "sparse.py"],
    );
    fs::remove_file(path.join("sparse.py")).unwrap();
    assert_eq!(
        facts(path),
        clean,
        "a file that is left out is as committed"
    );
    let plain = |name: &str| {
        write(path, name, "print(2)\n");
        let edited = facts(path);
        write(
            path,
            name,
            if name == "train.py" {
                "print(1)\n"
            } else {
                "print(0)\n"
            },
        );
        assert_eq!(facts(path), clean, "{name} as committed");
        edited
    };
    assert!(plain("train.py").contains_key("dirty") && plain("left.py").contains_key("dirty"));
    write(path, "sparse.py", "print(2)\n");
    assert!(facts(path).contains_key("dirty"));
    fs::remove_file(path.join("sparse.py")).unwrap();
    // The marks are the user's, and stay.
    let marks = String::from_utf8(git(path, &["ls-files", "-v"])).unwrap();
    assert!(
        marks.contains("h train.py") && marks.contains("S left.py"),
        "{marks}"
    );
    // What a user's list of ignored files names is there all the same.
    write(path, "ignored", "*.txt\n");
    git(
        path,
        &[
            "config",
            "core.excludesFile",
            path.join("ignored").to_str().unwrap(),
        ],
    );
    let before = facts(path);
    write(path, "more.txt", "more");
    assert_ne!(facts(path), before);
}

#[test]
fn packed_branches_linked_work_trees_and_split_indexes_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (main, linked) = (dir.path().join("main"), dir.path().join("linked"));
    repository(&main);
    let clean = facts(&main);
    git(&main, &["pack-refs", "--all"]);
    assert_eq!(facts(&main), clean);
    git(&main, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    assert_eq!(facts(&linked), clean);
    git(&main, &["update-index", "--split-index"]);
    assert_eq!(facts(&main), clean);
    write(&main, "train.py", "print(2)\n");
    assert!(facts(&main).contains_key("dirty") && !facts(&linked).contains_key("dirty"));
}

#[test]
fn what_is_no_repository_of_its_own_is_known_by_its_file() {
    let outer = tempfile::tempdir().unwrap();
    repository(outer.path());
    let copy = outer.path().join("copy");
    write(&copy, "train.py", "print(1)\n");
    assert_eq!(
        facts(&copy),
        BTreeMap::from([("content".to_owned(), Digest::of("print(1)\n").to_string())])
    );
}

#[test]
fn a_change_inside_a_submodule_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (inner, outer) = (dir.path().join("inner"), dir.path().join("outer"));
    repository(&inner);
    repository(&outer);
    let add = [
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        inner.to_str().unwrap(),
        "sub",
    ];
    git(&outer, &add);
    assert!(
        facts(&outer).contains_key("dirty"),
        "a submodule that no commit has"
    );
    git(&outer, &["commit", "-qm", "s"]);
    assert!(!facts(&outer).contains_key("dirty"));
    write(&outer.join("sub"), "train.py", "print(3)\n");
    let one = facts(&outer)["dirty"].clone();
    write(&outer.join("sub"), "train.py", "print(4)\n");
    let two = facts(&outer)["dirty"].clone();
    git(&outer.join("sub"), &["commit", "-qam", "x"]);
    let committed = facts(&outer)["dirty"].clone();
    assert!(one != two && two != committed && one != committed);
}

#[test]
fn an_untracked_repository_in_a_checkout_counts() {
    let dir = tempfile::tempdir().unwrap();
    repository(dir.path());
    let clean = facts(dir.path());
    let lib = dir.path().join("lib");
    repository(&lib);
    let mut seen = vec![clean.get("dirty").cloned()];
    let mut differs = |what: &str| {
        let dirty = facts(dir.path()).remove("dirty");
        assert!(!seen.contains(&dirty), "{what}");
        seen.push(dirty);
    };
    differs("a repository that nothing names");
    write(&lib, "train.py", "print(3)\n");
    differs("an edit in it");
    write(&lib, "more.py", "x = 1\n");
    differs("a file that it does not track");
    git(&lib, &["add", "."]);
    git(&lib, &["commit", "-qm", "x"]);
    differs("another commit of it");
    fs::remove_dir_all(&lib).unwrap();
    assert_eq!(facts(dir.path()), clean);
    // Nobody knows what would change in one without a commit.
    git(dir.path(), &["init", "-q", "empty"]);
    write(&dir.path().join("empty"), "train.py", "print(1)\n");
    let listed = git(dir.path(), &["ls-files", "--others"]);
    assert_eq!(String::from_utf8_lossy(&listed).trim(), "empty/");
    let why = checkout_facts(dir.path(), "train.py").unwrap_err();
    assert!(
        why.to_string()
            .contains("`empty/` is a repository without a commit")
    );
}

#[test]
fn a_file_that_cannot_be_read_is_not_a_file_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(untracked_digest(&dir.path().join("gone")).unwrap(), None);
    untracked_digest(dir.path()).unwrap_err();
}

/// Each of these settings makes plain git start a program.
#[test]
fn no_program_that_the_repository_names_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let (repo, inner, mark) = (
        dir.path().join("repo"),
        dir.path().join("inner"),
        dir.path().join("mark"),
    );
    repository(&repo);
    repository(&inner);
    let add = [
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        inner.to_str().unwrap(),
        "sub",
    ];
    git(&repo, &add);
    write(&repo, ".gitattributes", "*.py filter=evil diff=evil\n");
    git(&repo, &["add", "."]);
    git(&repo, &["commit", "-qm", "s"]);
    let program = format!("echo x >>{}; cat", mark.display());
    for place in [repo.clone(), repo.join("sub")] {
        for name in [
            "core.fsmonitor",
            "filter.evil.clean",
            "filter.evil.process",
            "diff.external",
            "diff.evil.command",
        ] {
            git(&place, &["config", name, &program]);
        }
    }
    write(&repo.join("sub"), ".gitattributes", "*.py filter=evil\n");
    write(&repo.join("sub"), "train.py", "print(5)\n");
    write(&repo, "train.py", "print(5)\n");
    assert!(facts(&repo).contains_key("dirty"));
    assert!(!mark.exists(), "a program of the repository ran");
    let _ = duct::cmd!("git", "diff", "HEAD")
        .dir(&repo)
        .stdout_null()
        .stderr_null()
        .unchecked()
        .run();
    assert!(
        mark.exists(),
        "the attack works on plain git, else this test shows nothing"
    );

    // A bare repository as plain files comes with any clone.
    let bare = dir.path().join("bare");
    git(
        dir.path(),
        &[
            "clone",
            "-q",
            "--bare",
            inner.to_str().unwrap(),
            bare.to_str().unwrap(),
        ],
    );
    write(&bare, "train.py", "print(1)\n");
    assert!(facts(&bare).contains_key("content"));
}
