//! Two hosts and a folder between them: whatever they do in whatever order, both end with the
//! union.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use tempfile::TempDir;
use tprimat_base::{
    digest::Digest,
    files::{Durability, write_atomically},
};

use super::{shared::text_name, *};
use crate::cache::{Attempt, Output, SetAside};

struct World {
    folder: TempDir,
    hosts: Vec<Cache>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::DirBuilder::new()
            .create(folder.path().join("remote"))
            .unwrap();
        let host = |name| Cache::open(&folder.path().join(name)).unwrap();
        let hosts = vec![host("a"), host("b")];
        Self { folder, hosts }
    }

    fn remote(&self) -> Remote {
        Remote::open(&format!("file://{}/remote", self.folder.path().display())).unwrap()
    }

    /// A run on a host, with a log of `length` bytes.
    fn run(&self, host: usize, key: u8, number: u32, length: usize) -> Attempt {
        let cache = &self.hosts[host];
        let nested = cache
            .record_preimage(format!("the job of key {key}"))
            .unwrap();
        let preimage = format!("key {key}\njob = \"{nested}\"\n");
        let log = format!("run {number} of host {host}\n").repeat(length);
        let log = &log.as_bytes()[..length];
        let digest = cache.put(log, Durability::Plain).unwrap();
        let output = Output {
            name: "log".into(),
            digest,
            size: length as u64,
        };
        let id = format!("2026-{number:04}-{host}");
        let attempt = Attempt {
            host: format!("host {host}"),
            ..Attempt::ok(id, format!("train {key}"), preimage, vec![output])
        };
        cache.record_attempt(&attempt).unwrap();
        attempt
    }

    fn push(&self, host: usize) -> Pushed {
        let (cache, remote) = (&self.hosts[host], self.remote());
        let listing = remote.list(None).unwrap();
        let records = cache.shared_records(None);
        let pushed = remote.push(cache, &records, &listing, &|_, _| Ok(()));
        assert!(pushed.cut.is_none(), "{pushed:?}");
        pushed
    }

    fn pull(&self, host: usize) -> Pulled {
        let remote = self.remote();
        let listing = remote.list(None).unwrap();
        let pulled = remote.pull(&self.hosts[host], &listing, &|_, _| Ok(()));
        let pulled = pulled.unwrap();
        assert!(pulled.cut.is_none(), "{pulled:?}");
        pulled
    }

    /// Everything that was measured and decided, with the bytes of the logs.
    fn state(&self, host: usize) -> Vec<(String, Option<Vec<u8>>)> {
        let cache = &self.hosts[host];
        let attempts = cache.all_attempts().into_iter();
        let mut all: Vec<_> = attempts
            .map(|attempt| {
                let log = cache.get(&attempt.outputs[0].digest).unwrap();
                (format!("{attempt:?}"), log)
            })
            .collect();
        all.sort();
        all
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let root = self.folder.path().join("remote");
        let list = |folder| self.remote().store.list(folder).unwrap();
        let names = ["records", "objects", "texts"].into_iter().flat_map(list);
        let read = |name: String| {
            let bytes = fs::read(root.join(&name)).unwrap();
            (name, bytes)
        };
        names.map(read).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Run { host: usize, key: u8, length: usize },
    SetAside { host: usize, which: usize },
    Push(usize),
    Pull(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let host = 0..2usize;
    prop_oneof![
        3 => (host.clone(), 0..3u8, 0..9000usize).prop_map(|(host, key, length)| Step::Run { host, key, length }),
        1 => (host.clone(), 0..9usize).prop_map(|(host, which)| Step::SetAside { host, which }),
        2 => host.clone().prop_map(Step::Push),
        2 => host.prop_map(Step::Pull),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_the_order_both_hosts_end_with_the_union(steps in proptest::collection::vec(step(), 1..14)) {
        let world = World::new();
        let mut seen: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Run { host, key, length } => drop(world.run(host, key, number, length)),
                Step::SetAside { host, which } => {
                    let cache = &world.hosts[host];
                    let attempts = cache.all_attempts();
                    if let Some(attempt) = attempts.get(which % attempts.len().max(1)) {
                        let why = SetAside { reason: format!("step {number}"), at: 1.0 };
                        cache.set_aside(attempt, Some(&why)).unwrap();
                    }
                }
                Step::Push(host) => drop(world.push(host)),
                Step::Pull(host) => drop(world.pull(host)),
            }
            let now = world.files();
            // What was there stays there, byte for byte.
            for (name, bytes) in &seen {
                prop_assert_eq!(now.get(name), Some(bytes));
            }
            seen = now;
        }
        for host in [0, 1, 0, 1] {
            world.pull(host);
            world.push(host);
        }
        prop_assert_eq!(world.state(0), world.state(1));
        for host in [0, 1] {
            let Pushed { counts, incomplete, .. } = world.push(host);
            prop_assert_eq!((counts, incomplete), (Counts::default(), 0));
            let Pulled { counts, objects, .. } = world.pull(host);
            prop_assert_eq!((counts, objects), (Counts::default(), 0));
        }
    }
}

#[test]
fn texts_that_an_attempt_names_travel_with_it() {
    let world = World::new();
    world.run(0, 1, 1, 10);
    world.push(0);
    assert_eq!(world.pull(1).counts.runs, 1);
    let text = "the job of key 1";
    assert_eq!(
        world.hosts[1].preimage(&Digest::of(text)).as_deref(),
        Some(text)
    );
}

#[test]
fn a_transfer_that_breaks_off_says_what_went_before_and_why_it_broke_off() {
    let world = World::new();
    let all = 64;
    for number in 0..all {
        world.run(0, number as u8, number, 10);
    }
    let stopped = |_: usize, _: usize| Err(Error::Interrupted(2));
    let (remote, cache) = (world.remote(), &world.hosts[0]);
    let records = cache.shared_records(None);
    let pushed = remote.push(cache, &records, &Listing::default(), &stopped);
    assert!(
        matches!(pushed.cut, Some(Error::Interrupted(2))),
        "{pushed:?}"
    );
    let there = remote.list(None).unwrap().len();
    assert_eq!((pushed.counts.runs, pushed.there.len()), (there, there));
    assert!((1..all as usize).contains(&there), "{there} were pushed");

    world.push(0);
    let listing = remote.list(None).unwrap();
    let pulled = remote.pull(&world.hosts[1], &listing, &stopped).unwrap();
    assert!(
        matches!(pulled.cut, Some(Error::Interrupted(2))),
        "{pulled:?}"
    );
    let here = world.hosts[1].all_attempts().len();
    assert_eq!(pulled.counts.runs, here);
    assert!((1..all as usize).contains(&here), "{here} were pulled");
    assert_eq!(world.pull(1).counts.runs, all as usize - here);
}

#[test]
fn only_the_keys_that_are_asked_for_come() {
    let world = World::new();
    let wanted = world.run(0, 1, 1, 10).key;
    world.run(0, 2, 2, 10);
    world.push(0);
    let remote = world.remote();
    let listing = remote.list(Some(&BTreeSet::from([wanted]))).unwrap();
    let pulled = remote
        .pull(&world.hosts[1], &listing, &|_, _| Ok(()))
        .unwrap();
    assert_eq!(pulled.counts.runs, 1);
    assert_eq!(world.hosts[1].all_attempts()[0].key, wanted);
}

/// The names of one run in a remote: its record, its text, its log.
fn names(attempt: &Attempt) -> [String; 3] {
    let record = format!("records/{}/{}.json", attempt.key, attempt.id);
    let job = Digest::of("the job of key 1");
    let log = shared::object_name(&attempt.outputs[0].digest);
    [record, text_name(&job), log]
}

#[test]
fn what_is_not_what_its_name_says_is_never_taken_and_is_repaired_from_a_host_that_has_it() {
    let world = World::new();
    let run = world.run(0, 1, 1, 5000);
    world.push(0);
    let good = world.files();
    let [record, text, log] = names(&run);
    let place = |name: &String| world.folder.path().join("remote").join(name);
    let edited = |name: &String, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good[name].clone();
        edit(&mut bytes);
        fs::remove_file(place(name)).unwrap();
        write_atomically(&place(name), &bytes, Durability::Plain).unwrap();
    };
    type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);
    let flip: Edit<'_> = &|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let (halve, empty): (Edit<'_>, Edit<'_>) =
        (&|bytes| bytes.truncate(bytes.len() / 2), &|bytes| {
            bytes.clear()
        });
    let longer: Edit<'_> = &|bytes| {
        let mut raw = zstd::decode_all(&bytes[..]).unwrap();
        raw.push(b'x');
        *bytes = zstd::encode_all(&raw[..], 1).unwrap();
    };
    for (name, edit) in [
        (&record, flip),
        (&record, halve),
        (&record, empty),
        (&text, flip),
        (&log, flip),
        (&log, halve),
        (&log, empty),
        (&log, longer),
    ] {
        edited(name, edit);
        let pulled = world.pull(1);
        assert_eq!((pulled.counts.runs, pulled.refused.len()), (0, 1), "{name}");
        assert!(pulled.refused[0].starts_with(&record), "{pulled:?}");
        assert!(world.hosts[1].all_attempts().is_empty(), "{name}");
        let (remote, listing) = (world.remote(), world.remote().list(None).unwrap());
        let before = everything_below(world.folder.path());
        let found = remote.verify(&listing, None, &|_, _| Ok(())).unwrap();
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(everything_below(world.folder.path()), before);
        let repaired = remote.verify(&listing, Some(&world.hosts[0]), &|_, _| Ok(()));
        assert_eq!(repaired.unwrap(), found);
        assert_eq!(world.files(), good, "{name}");
    }
    fs::remove_file(place(&log)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place(&log)).unwrap();
    assert_eq!(world.pull(1).refused.len(), 1, "a link is followed nowhere");
    fs::remove_file(place(&log)).unwrap();
    assert!(world.pull(1).refused[0].contains("is not there"));
    write_atomically(&place(&log), &good[&log], Durability::Plain).unwrap();
    assert_eq!(world.pull(1).counts.runs, 1);
    assert_eq!(world.state(0), world.state(1));
}

/// Who may write to a remote folder must not choose where else the others read or write.
#[test]
fn no_link_in_a_remote_is_followed_and_what_is_no_file_is_told() {
    let world = World::new();
    let attempt = world.run(0, 1, 1, 10);
    let [record, _, log] = names(&attempt);
    let (remote, elsewhere) = (
        world.folder.path().join("remote"),
        world.folder.path().join("other"),
    );
    let make = |folder: &Path| {
        fs::DirBuilder::new()
            .recursive(true)
            .create(folder)
            .unwrap()
    };
    for (place, is_of_records) in [
        (Path::new("records"), true),
        (Path::new(&record).parent().unwrap(), false),
        (Path::new("objects"), false),
        (Path::new(&log).parent().unwrap(), false),
    ] {
        make(&elsewhere);
        let link = remote.join(place);
        make(link.parent().unwrap());
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        let (to, cache) = (world.remote(), &world.hosts[0]);
        let why = match to.list(None) {
            Err(why) => why.to_string(),
            Ok(listing) => {
                assert!(!is_of_records, "{place:?}");
                let pushed = to.push(cache, &cache.shared_records(None), &listing, &|_, _| Ok(()));
                pushed.cut.unwrap().to_string()
            }
        };
        assert!(why.contains("is a link"), "{place:?}: {why}");
        if record.starts_with(place.to_str().unwrap()) && !is_of_records {
            assert!(world.pull(1).refused[0].contains("is a link"), "{place:?}");
        }
        assert!(everything_below(&elsewhere).is_empty(), "{place:?}");
        fs::remove_dir_all(&remote).unwrap();
        make(&remote);
    }
    world.push(0);
    fs::remove_file(remote.join(&record)).unwrap();
    nix::unistd::mkfifo(&remote.join(&record), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(world.pull(1).refused[0].contains("it is a pipe"));
}

fn everything_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(everything_below(&entry.path()));
        }
    }
    found.sort();
    found
}

/// Attempts that no build records, though their digests are right.
#[test]
fn a_forged_attempt_is_refused() {
    type Edit = fn(&mut Attempt);
    let edits: [(&str, Edit); 5] = [
        ("another key", |a| a.preimage.push('x')),
        ("a name that leads elsewhere", |a| {
            a.outputs[0].name = "../../.bashrc".into();
        }),
        ("another id", |a| a.id = "another".into()),
        ("a file without end", |a| a.outputs[0].size = u64::MAX),
        ("from the far future", |a| a.recorded = u64::MAX),
    ];
    for (what, edit) in edits {
        let world = World::new();
        let mut attempt = world.run(0, 1, 1, 10);
        world.push(0);
        let [record, ..] = names(&attempt);
        edit(&mut attempt);
        let place = world.folder.path().join("remote").join(record);
        fs::remove_file(&place).unwrap();
        let forged = crate::cache::sealed::seal(&attempt).unwrap();
        write_atomically(&place, &forged, Durability::Plain).unwrap();
        let pulled = world.pull(1);
        assert_eq!((pulled.counts.runs, pulled.refused.len()), (0, 1), "{what}");
    }
}

/// An archive whose only member has this name and kind.
fn archive(folder: &Path, name: &str, kind: tar::EntryType) -> fs::File {
    let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(1);
    header.set_entry_type(kind);
    header.set_link_name_literal("/etc/passwd").unwrap();
    header.set_cksum();
    tar.append(&header, &b"x"[..]).unwrap();
    let bytes = tar.into_inner().unwrap().finish().unwrap();
    let path = folder.join("evil.tar.zst");
    write_atomically(&path, &bytes, Durability::Plain).unwrap();
    fs::File::open(path).unwrap()
}

#[test]
fn an_archive_writes_nothing_but_checked_files_into_the_cache() {
    use tar::EntryType as Kind;
    let world = World::new();
    let cache = &world.hosts[1];
    let outside = tempfile::tempdir().unwrap();
    let digest = Digest::of("x").to_string();
    let (folder, rest) = digest.split_at(2);
    let object = format!("objects/{folder}/{rest}");
    let cases = [
        ("../escaped", Kind::Regular),
        ("/tmp/escaped", Kind::Regular),
        ("objects/../../escaped", Kind::Regular),
        (&object.to_uppercase(), Kind::Regular),
        ("made/x.json", Kind::Regular),
        ("CACHEDIR.TAG", Kind::Regular),
        (&object, Kind::Symlink),
        (&object, Kind::Link),
        (&object, Kind::Fifo),
        ("objects", Kind::Directory),
    ];
    let before = everything_below(world.folder.path());
    for (name, kind) in cases {
        let file = archive(outside.path(), name, kind);
        let error = cache.import(file, Path::new("evil.tar.zst")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("nothing was taken in"), "{name}: {error}");
        assert_eq!(everything_below(world.folder.path()), before, "{name}");
    }
    for bytes in [&b""[..], b"hello"] {
        let path = outside.path().join("no");
        write_atomically(&path, bytes, Durability::Plain).unwrap();
        assert!(cache.import(fs::File::open(&path).unwrap(), &path).is_err());
    }
}

#[test]
fn an_archive_brings_everything_and_an_incomplete_run_is_left_out() {
    let world = World::new();
    world.run(0, 1, 1, 6000);
    let lost = world.run(0, 2, 2, 7000);
    let why = SetAside {
        reason: "a slip".into(),
        at: 1.0,
    };
    world.hosts[0]
        .set_aside(&world.hosts[0].all_attempts()[0], Some(&why))
        .unwrap();
    let log = shared::object_name(&lost.outputs[0].digest);
    fs::remove_file(world.hosts[0].root().join(log)).unwrap();
    let path = world.folder.path().join("all.tar.zst");
    let mut archive = Vec::new();
    let told = world.hosts[0].export(&mut archive).unwrap();
    write_atomically(&path, &archive, Durability::Plain).unwrap();
    assert_eq!(
        (told.counts.runs, told.counts.decisions, told.incomplete),
        (1, 1, 1)
    );
    let taken = world.hosts[1]
        .import(fs::File::open(&path).unwrap(), &path)
        .unwrap();
    assert_eq!((taken.counts.runs, taken.counts.decisions), (1, 1));
    assert_eq!(world.state(1), world.state(0)[..1]);
}

#[test]
fn an_address_is_a_place_and_nothing_else() {
    for (address, why) in [
        ("backups", "is not an address"),
        ("file://relative", "is not an absolute path"),
        ("ftp://host/x", "is of an unknown kind"),
        ("s3://key:secret@bucket/x", "holds more than a place"),
        ("az://container/x?sig=secret", "holds more than a place"),
    ] {
        let error = Remote::open(address).err().unwrap().to_string();
        assert!(error.contains(why), "{address}: {error}");
    }
}

/// Two hosts that both saw that a name is free.
#[test]
fn the_second_who_writes_a_name_changes_nothing() {
    let world = World::new();
    let store = world.remote().store;
    assert!(store.put_if_absent("runs/a/b", b"first".to_vec()).unwrap());
    assert!(!store.put_if_absent("runs/a/b", b"second".to_vec()).unwrap());
    let read = |most| store.get("runs/a/b", most);
    assert_eq!(read(5).unwrap().as_deref(), Some(&b"first"[..]));
    assert!(read(4).is_err(), "more than the most was read");
    let left = everything_below(&world.folder.path().join("remote/runs/a"));
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_folder_that_is_not_mounted_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("not-mounted");
    let remote = Remote::open(&format!("file://{}", place.display())).unwrap();
    let error = remote.list(None).err().unwrap().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
    assert!(!place.exists());
}
