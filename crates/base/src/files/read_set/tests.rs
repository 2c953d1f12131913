use std::os::unix::fs::symlink;

use super::*;
use crate::files::{Durability, create_dir_all, write_atomically};

fn write(path: &Path, text: &str) {
    write_atomically(path, text.as_bytes(), Durability::Plain).unwrap();
}

#[test]
fn a_young_file_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    assert!(is_as_it_was(&path, None));
    write(&path, "one");
    assert!(!is_as_it_was(&path, None));

    // Just written, so not settled: read again, and the same.
    let old = Known::of(&path).unwrap();
    assert!(!old.stamp.is_still(&Stamp::of(&path).unwrap()));
    assert!(is_as_it_was(&path, Some(&old)));

    write(&path, "two");
    assert!(!is_as_it_was(&path, Some(&old)));
}

#[test]
fn what_is_edited_after_it_was_read_is_known_as_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(&path("read"), "one");
    write(&path("src/a.py"), "a");
    let reads = ReadSet::default();
    assert_eq!(
        reads.read(&path("read")).unwrap().as_deref(),
        Some(&b"one"[..])
    );
    assert!(
        reads.read(&path("absent")).unwrap().is_none() && !reads.is_file(&path("src")).unwrap()
    );
    assert_eq!(reads.list(&path("src")).unwrap().len(), 1);
    let after = |change: &dyn Fn()| {
        let evidence = reads.evidence().unwrap();
        assert_eq!(evidence.check(), Standing::Holds);
        change();
        evidence.check()
    };
    let changed = |name: &str| Standing::Changed(path(name));
    assert_eq!(after(&|| write(&path("read"), "two")), changed("read"));
    write(&path("read"), "one");
    assert_eq!(after(&|| write(&path("absent"), "")), changed("absent"));
    fs::remove_file(path("absent")).unwrap();
    assert_eq!(after(&|| write(&path("src/b.py"), "")), changed("src"));
    fs::remove_file(path("src/b.py")).unwrap();
    // A file that becomes a folder may have files in it.
    let swap = || {
        fs::remove_file(path("src/a.py")).unwrap();
        create_dir_all(&path("src/a.py")).unwrap();
    };
    assert_eq!(after(&swap), changed("src"));
}

#[test]
fn what_changes_while_it_is_read_is_no_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write(&path, "one");
    let reads = ReadSet::default();
    reads.read(&path).unwrap();
    reads.digest(&path).unwrap();
    assert!(reads.evidence().is_ok());
    write(&path, "two");
    reads.read(&path).unwrap();
    assert_eq!(reads.evidence().unwrap_err(), path);
}

#[test]
fn a_walk_follows_links_but_not_round_in_a_circle() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, root) = (folder.path().join("outside"), folder.path().join("root"));
    write(&outside.join("net.py"), "");
    write(&root.join("src/a.py"), "");
    symlink(&outside, root.join("src/shared")).unwrap();
    symlink(".", root.join("src/x")).unwrap();
    symlink("../src", root.join("src/y")).unwrap();
    symlink("nowhere", root.join("src/gone")).unwrap();
    let reads = ReadSet::default();
    let found = reads.walk(&root, Path::new("src"), usize::MAX).unwrap();
    let names: Vec<(&str, EntryKind)> = found
        .iter()
        .map(|f| (f.path.to_str().unwrap(), f.kind))
        .collect();
    let gone = EntryKind::Other("a link to nothing");
    let file = EntryKind::File;
    assert_eq!(
        names,
        [
            ("src/a.py", file),
            ("src/gone", gone),
            ("src/shared/net.py", file)
        ]
    );
    // A link to a folder above would have the whole host looked through.
    for above in ["/", ".."] {
        symlink(above, outside.join("up")).unwrap();
        let why = reads.walk(&outside, Path::new(""), usize::MAX).unwrap_err();
        assert!(why.starts_with("up leads to /"), "{why}");
        std::fs::remove_file(outside.join("up")).unwrap();
    }
    // Two ways to each of thirty folders, and no circle: 2³⁰ paths.
    for n in 0..30 {
        create_dir_all(&root.join(format!("d{n}"))).unwrap();
        for name in ["a", "b"] {
            symlink(format!("../d{}", n + 1), root.join(format!("d{n}/{name}"))).unwrap();
        }
    }
    create_dir_all(&root.join("d30")).unwrap();
    let why = ReadSet::default()
        .walk_code(&root, Path::new("d0"), 500, &|_| false)
        .unwrap_err();
    assert!(
        why.starts_with("there are more than 500 files and folders"),
        "{why}"
    );
}

/// Does it as a user whom permissions stop, also where the tests run as root.
fn as_nobody<T>(act: impl FnOnce() -> T) -> T {
    use nix::unistd::{Uid, setfsuid};
    // Only this thread's view of the file system changes.
    let before = setfsuid(Uid::from_raw(65534));
    let done = act();
    setfsuid(before);
    done
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "plays a folder of somebody else's"
)]
fn what_may_not_be_looked_at_is_an_error_and_not_an_empty_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str, mode| {
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    write(&folder.path().join("src/secret/a.py"), "a");
    mode("", 0o755);
    mode("src", 0o755);
    let reads = ReadSet::default();
    reads
        .walk(folder.path(), Path::new("src"), usize::MAX)
        .unwrap();
    let evidence = reads.evidence().unwrap();
    mode("src/secret", 0o000);
    as_nobody(|| {
        let reads = ReadSet::default();
        let why = reads
            .walk(folder.path(), Path::new("src"), usize::MAX)
            .unwrap_err();
        assert!(
            why.starts_with("cannot read the folder")
                && why.contains("src/secret: Permission denied"),
            "{why}"
        );
        let why = reads
            .walk(folder.path(), Path::new("src/secret/deeper"), 1)
            .unwrap_err();
        assert!(why.contains("Permission denied"), "{why}");
        assert!(
            reads
                .is_file(&folder.path().join("src/secret/a.py"))
                .is_err()
        );
        assert!(
            reads
                .is_there(&folder.path().join("src/secret/a.py"))
                .is_err()
        );
        assert!(!reads.is_file(&folder.path().join("src/b.py")).unwrap());
        assert!(
            !reads
                .is_file(&folder.path().join("x".repeat(5000)))
                .unwrap()
        );
        assert_eq!(
            evidence.check(),
            Standing::Changed(folder.path().join("src/secret"))
        );
    });
    mode("src/secret", 0o755);
}

#[test]
fn leftovers_are_seen_nowhere() {
    for name in [
        "__pycache__",
        "m.pyc",
        "a.py~",
        ".#a.py",
        "#a.py#",
        ".a.py.swp",
        ".git",
        ".tmp-x",
    ] {
        assert!(is_leftover(OsStr::new(name)), "{name}");
    }
    for name in ["a.py", "tilde~.py", "#", "swp", ".env", ".swp", "a.swp"] {
        assert!(!is_leftover(OsStr::new(name)), "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let reads = ReadSet::default();
    reads.leave_out([folder.path().join("cache")]);
    assert!(reads.list(folder.path()).unwrap().is_empty());
    for name in ["a.py~", "cache/x", "__pycache__/m.pyc"] {
        write(&folder.path().join(name), "");
    }
    symlink("user@host.1", folder.path().join(".#a.py")).unwrap();
    assert_eq!(reads.evidence().unwrap().check(), Standing::Holds);
}
