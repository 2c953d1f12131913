use std::os::unix::fs::symlink;

use super::*;
use crate::files::{Durability, create_dir_all, write_atomically};

fn write(path: &Path, text: &str) {
    write_atomically(path, text.as_bytes(), Durability::Plain).unwrap();
}

#[test]
fn a_file_is_known_as_it_was_when_it_was_first_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let reads = ReadSet::default();
    write(&path, "one");
    assert_eq!(reads.read(&path).unwrap().as_deref(), Some(&b"one"[..]));
    write(&path, "two");
    reads.read(&path).unwrap();
    assert_eq!(reads.known(&path).unwrap().digest, Digest::of("one"));
    reads.wrote(&path).unwrap();
    assert_eq!(reads.known(&path).unwrap().digest, Digest::of("two"));
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
    for name in ["a.py~", "cache/x", "__pycache__/m.pyc"] {
        write(&folder.path().join(name), "");
    }
    symlink("user@host.1", folder.path().join(".#a.py")).unwrap();
    assert!(reads.list(folder.path()).unwrap().is_empty());
}
