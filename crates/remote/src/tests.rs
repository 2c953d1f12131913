//! Two hosts and a folder between them: whatever they do in whatever order, both end with the
//! union.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use tempfile::TempDir;
use tprimat_base::{digest::Digest, files::Durability};
use tprimat_cache::{Attempt, Cache, Output, SetAside};
use tprimat_job::RunOutcome;

use super::*;

const LIST: Digest = Digest([7; 32]);

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
            .record_preimage(&format!("the job of key {key}"))
            .unwrap();
        let preimage = format!("key {key}\njob = \"{nested}\"\n");
        let log = format!("run {number} of host {host}\n").repeat(length);
        let log = &log.as_bytes()[..length];
        let digest = cache.put(log, Durability::Plain).unwrap();
        let attempt = Attempt {
            id: format!("2026-{number:04}-{host}"),
            key: Digest::of(&preimage),
            task: format!("train {key}"),
            preimage,
            generation: 0,
            outcome: RunOutcome::Ok,
            outputs: vec![Output {
                name: "log".into(),
                digest,
                size: length as u64,
            }],
            started_at: 1.0,
            ended_at: 2.0,
            host: format!("host {host}"),
            suspect: None,
            repeats_planned: None,
            set_aside: None,
            undeclared: Default::default(),
            recorded: 0,
        };
        cache.record_attempt(&attempt).unwrap();
        attempt
    }

    fn push(&self, host: usize) -> Pushed {
        let (cache, remote) = (&self.hosts[host], self.remote());
        let listing = remote.list(None).unwrap();
        let records = cache.shared_records().unwrap();
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
        let names = self.remote().store.list(RUNS).unwrap();
        let read = |name: String| {
            let bytes = fs::read(root.join(&name)).unwrap();
            (name, bytes)
        };
        names.into_iter().map(read).collect()
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
            let Pushed { runs, incomplete, .. } = world.push(host);
            prop_assert_eq!((runs, incomplete), (0, 0));
            prop_assert_eq!(world.pull(host).counts, Counts::default());
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
    let records = cache.shared_records().unwrap();
    let pushed = remote.push(cache, &records, &Listing::default(), &stopped);
    assert!(
        matches!(pushed.cut, Some(Error::Interrupted(2))),
        "{pushed:?}"
    );
    let there = world.files().len();
    assert_eq!((pushed.runs, pushed.there.len()), (there, there));
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

/// Replaces the bytes behind the only name of the remote.
fn replace(world: &World, by: &[u8]) {
    let names = world.remote().store.list(RUNS).unwrap();
    let path = world.folder.path().join("remote").join(&names[0]);
    fs::remove_file(&path).unwrap();
    tprimat_base::files::write_atomically(&path, by, Durability::Plain).unwrap();
}

/// The members of a bundle.
fn members(bundle: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(zstd::Decoder::new(bundle).unwrap());
    let read = |member: io::Result<tar::Entry<'_, _>>| {
        let mut member = member.unwrap();
        let name = member.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut member, &mut bytes).unwrap();
        (name, bytes)
    };
    archive.entries().unwrap().map(read).collect()
}

/// A member as an attacker writes it: any name, kind and link.
struct Member<'a> {
    name: &'a str,
    bytes: &'a [u8],
    kind: tar::EntryType,
    link: &'a str,
}

fn plain<'a>(name: &'a str, bytes: &'a [u8]) -> Member<'a> {
    Member {
        name,
        bytes,
        kind: tar::EntryType::Regular,
        link: "",
    }
}

fn bundle(members: &[Member<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
    for member in members {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..member.name.len()].copy_from_slice(member.name.as_bytes());
        header.set_size(member.bytes.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(member.kind);
        if !member.link.is_empty() {
            header.set_link_name_literal(member.link).unwrap();
        }
        header.set_cksum();
        tar.append(&header, member.bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn what_is_not_what_its_name_says_is_never_taken() {
    let world = World::new();
    world.run(0, 1, 1, 5000);
    world.push(0);
    let (_, good) = world.files().pop_first().unwrap();
    let sound = members(&good);
    let [mark, record, text, log] = &sound[..] else {
        panic!("{} members", sound.len())
    };
    let other = vec![b'x'; log.1.len()];
    let longer = [&log.1[..], b"x"].concat();
    let (mark, record) = (plain(&mark.0, &mark.1), plain(&record.0, &record.1));
    let text = plain(&text.0, &text.1);
    let plain_log = || plain(&log.0, &log.1);
    let again = |m: &Member<'_>| bundle(&[plain("tprimat-bundle-1", b""), plain(m.name, m.bytes)]);
    let with = |last: Member<'_>| {
        bundle(&[
            plain(mark.name, mark.bytes),
            plain(record.name, record.bytes),
            plain(text.name, text.bytes),
            last,
        ])
    };
    let mut forged = record.bytes.to_vec();
    let at = forged.len() - 30;
    forged[at] ^= 1;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "another log",
            with(plain(&log.0, &other)),
            "is not what its digest says",
        ),
        ("a longer log", with(plain(&log.0, &longer)), "bytes"),
        ("no log", again(&record), "does not hold all"),
        (
            "a record that was edited",
            again(&plain(record.name, &forged)),
            "digest",
        ),
        (
            "a file that nobody names",
            with(plain(&format!("objects/{}", Digest::of("evil")), b"evil")),
            "is named by no record",
        ),
        (
            "a log before its record",
            bundle(&[
                plain(mark.name, b""),
                plain_log(),
                plain(record.name, record.bytes),
            ]),
            "is named by no record",
        ),
        ("no bundle", b"hello".to_vec(), "cannot be read"),
        ("nothing", Vec::new(), "is empty"),
        ("half", good[..good.len() / 2].to_vec(), "cannot be read"),
    ];
    for (what, bytes, why) in cases {
        replace(&world, &bytes);
        let pulled = world.pull(1);
        assert_eq!(pulled.counts.runs, 0, "{what}");
        assert_eq!(pulled.refused.len(), 1, "{what}");
        let refused = &pulled.refused[0];
        assert!(refused.contains(why), "{what}: {refused}");
        assert!(world.hosts[1].all_attempts().is_empty(), "{what}");
        assert!(!world.hosts[1].has(&Digest::of(&other)), "{what}");
    }
    replace(&world, &good);
    assert_eq!(world.pull(1).counts.runs, 1);
    assert_eq!(world.state(0), world.state(1));
}

/// The cache has the right log, so no reader may trust it in place of the one in the bundle.
#[test]
fn damage_inside_a_bundle_is_found_and_repaired_also_where_the_log_is_here() {
    let world = World::new();
    world.run(0, 1, 1, 5000);
    world.push(0);
    let (_, good) = world.files().pop_first().unwrap();
    let mut damaged = members(&good);
    let log = damaged.last_mut().unwrap();
    log.1[2500] ^= 1;
    let damaged: Vec<Member<'_>> = damaged.iter().map(|(n, b)| plain(n, b)).collect();
    replace(&world, &bundle(&damaged));
    let (remote, cache) = (world.remote(), &world.hosts[0]);
    let listing = remote.list(None).unwrap();
    let before = everything_below(world.folder.path());
    let found = remote.verify(&listing, &|_, _| Ok(())).damaged;
    let [one] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(one.why.contains("is not what its digest says"), "{one:?}");
    assert_eq!(everything_below(world.folder.path()), before);
    let records = cache.shared_records().unwrap();
    // What was done and found before an interruption is told.
    let cut = |_, _| Err(Error::invalid(Problem::new("interrupted")));
    let verified = remote.verify(&listing, &cut);
    assert!(verified.cut.is_some());
    assert_eq!(verified.damaged, found);
    let repaired = remote.repair(cache, &records, &listing, &cut);
    assert!(repaired.cut.is_some());
    assert_eq!(repaired.names, std::slice::from_ref(&one.name));
    assert_eq!(world.files().pop_first().unwrap().1, good);
    let verified = remote.verify(&listing, &|_, _| Ok(()));
    assert!(verified.cut.is_none() && verified.damaged.is_empty());
}

#[test]
fn a_bundle_writes_nothing_but_checked_objects_into_the_cache() {
    use tar::EntryType as Kind;
    let world = World::new();
    let cache = &world.hosts[1];
    let digest = Digest::of("x").to_string();
    let object = format!("objects/{digest}");
    let evil = |name, kind, link| Member {
        name,
        bytes: b"",
        kind,
        link,
    };
    let upper = format!("objects/{}", digest.to_uppercase());
    let deep = format!("objects/../objects/{digest}");
    let cases = [
        plain("../escaped", b"x"),
        plain("/tmp/escaped", b"x"),
        plain("objects/../../escaped", b"x"),
        plain(&deep, b"x"),
        plain(&upper, b"x"),
        plain("segments/0001.seg", b"x"),
        plain("CACHEDIR.TAG", b"x"),
        evil(&object, Kind::Symlink, "/etc/passwd"),
        evil(&object, Kind::Link, "../../a/objects"),
        evil(&object, Kind::Char, ""),
        evil(&object, Kind::Block, ""),
        evil(&object, Kind::Fifo, ""),
        evil("objects", Kind::Directory, ""),
        evil("././@LongLink", Kind::GNULongName, ""),
        evil("pax", Kind::XHeader, ""),
        evil("sparse", Kind::GNUSparse, ""),
    ];
    let before = everything_below(world.folder.path());
    for member in cases {
        let (name, kind) = (member.name.to_owned(), member.kind);
        let bytes = bundle(&[plain("tprimat-bundle-1", b""), member]);
        let taken = cache.receive(&bytes[..], Expected::Any { list: LIST });
        let error = taken
            .err()
            .unwrap_or_else(|| panic!("{name} {kind:?} was taken"));
        let why = match kind {
            Kind::Regular => "has a name that no bundle of tprimat has",
            _ => "is not a regular file",
        };
        assert!(error.to_string().contains(why), "{name}: {error}");
        assert_eq!(everything_below(world.folder.path()), before, "{name}");
    }
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
        ("another key", |a| a.key = Digest::of("another")),
        ("a generation for ever", |a| a.generation = u32::MAX),
        ("a name that leads elsewhere", |a| {
            a.outputs[0].name = "../../.bashrc".into();
        }),
        ("an id that leads elsewhere", |a| a.id = "../x".into()),
        ("a file without end", |a| a.outputs[0].size = u64::MAX),
    ];
    for (what, edit) in edits {
        let world = World::new();
        let mut attempt = world.run(0, 1, 1, 10);
        attempt.id = "forged".into();
        edit(&mut attempt);
        world.hosts[0].record_attempt(&attempt).unwrap();
        let records = world.hosts[0].shared_records().unwrap();
        let forged = records
            .iter()
            .find(|r| r.attempt().is_some_and(|a| a.id == attempt.id))
            .unwrap();
        let mut bytes = Vec::new();
        // A size that is not the file's cannot even be packed.
        if world.hosts[0].pack_record(forged, &mut bytes).is_err() {
            assert_eq!(what, "a file without end");
            continue;
        }
        let taken = world.hosts[1].receive(&bytes[..], Expected::One(forged.digest));
        assert!(taken.is_err(), "{what} was taken");
    }
}

#[test]
fn an_exported_bundle_brings_everything_and_an_incomplete_run_is_left_out() {
    let world = World::new();
    world.run(0, 1, 1, 6000);
    let lost = world.run(0, 2, 2, 7000);
    let digest = lost.outputs[0].digest.to_string();
    let (folder, name) = digest.split_at(2);
    let object = world.hosts[0]
        .root()
        .join("objects")
        .join(folder)
        .join(name);
    fs::remove_file(object).unwrap();
    let mut bytes = Vec::new();
    let told = world.hosts[0].export(&LIST, &mut bytes).unwrap();
    assert_eq!((told.runs, told.incomplete), (1, 1));
    let received = world.hosts[1]
        .receive(&bytes[..], Expected::Any { list: LIST })
        .unwrap();
    assert_eq!(world.hosts[1].admit([received]).unwrap().runs, 1);
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
