//! Disks that are full, and folders that cannot be written to.

use std::{fs, io::Read, path::Path, process::Command};

use nix::sys::{
    resource::{Resource, setrlimit},
    signal::{SigHandler, Signal, signal},
};
use tprimat_base::{
    error::Error,
    files::{self, Durability},
};

use super::{
    child::{process, said, say},
    *,
};

/// Records entries until no file may grow any more; runs in a process of its own.
pub fn fill(root: &Path) {
    // SAFETY: ignoring a signal runs no handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 20_000, 20_000).unwrap();
    let cache = Cache::open(root).unwrap();
    let mut noise = vec![0; 40_000];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    say(&format!(
        "put: {}",
        cache.put(&noise, Durability::Plain).unwrap_err()
    ));
    assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    let mut large = entry(TaskKind::Parse, 1, 1, 1);
    large.preimage = "key ".repeat(10_000);
    say(&format!(
        "record: {}",
        cache.record_entry(&large).unwrap_err()
    ));
    assert!(
        cache.outputs(&digest(1)).is_none(),
        "what failed is not there"
    );
    assert!(cache.record_attempt(&attempt(2, 0, 2, 2)).is_err());
}

#[test]
fn a_full_disk_is_one_clear_error_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let mut child = process("fill", &root, 0).spawn().unwrap();
    let mut output = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{output}");

    let errors: Vec<&str> = said(&output).filter(|line| line.contains(": ")).collect();
    let expected = format!(
        "cannot write to the cache {}: File too large (os error 27)",
        root.display()
    );
    assert_eq!(
        errors,
        [format!("put: {expected}"), format!("record: {expected}")]
    );

    let cache = Cache::open(&root).unwrap();
    assert!(cache.outputs(&digest(1)).is_none() && cache.attempts(&digest(2)).is_empty());
    let entry = entry(TaskKind::Parse, 1, 1, 1);
    cache.record_entry(&entry).unwrap();
    let again = Cache::open(&root).unwrap();
    assert_eq!(again.outputs(&digest(1)), Some(entry.outputs));
}

#[test]
fn a_folder_that_cannot_be_made_reads_as_empty() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    files::write_atomically(&file, b"in the way", Durability::Plain).unwrap();
    let root = file.join("cache");
    let cache = Cache::open(&root).unwrap();
    let key = digest(1);
    assert!(cache.outputs(&key).is_none() && !cache.has(&key) && cache.attempts(&key).is_empty());
    assert_eq!(
        (cache.get(&key).unwrap(), cache.generation(&key)),
        (None, 0)
    );

    let failures: Vec<Error> = vec![
        cache.ensure_writable().unwrap_err(),
        cache.put(b"x", Durability::Plain).unwrap_err(),
        cache.put_file(&file, Durability::Plain).unwrap_err(),
        cache
            .record_entry(&entry(TaskKind::Parse, 1, 1, 1))
            .unwrap_err(),
        cache.record_attempt(&attempt(1, 0, 1, 1)).unwrap_err(),
        cache.record_preimage("x").unwrap_err(),
        cache.try_lock_key(&key).err().unwrap(),
    ];
    // What is there to be counted on cannot be read.
    assert!(cache.open_generation(&key).is_err());
    for failure in failures {
        let expected = format!(
            "cannot write to the cache {}: Not a directory (os error 20)",
            root.display()
        );
        assert_eq!(
            (failure.to_string(), failure.exit_code()),
            (expected, tprimat_base::error::exit::USAGE)
        );
    }
}

/// On a cache with one entry and one object, mounted read-only; runs in a process of its own.
pub fn read_only(root: &Path) {
    let cache = Cache::open(root).unwrap();
    let digest = Digest::of("object");
    assert_eq!(
        cache.outputs(&super::digest(1)).unwrap(),
        entry(TaskKind::Parse, 1, 1, 1).outputs
    );
    assert_eq!(cache.get(&digest).unwrap().as_deref(), Some(&b"object"[..]));
    assert_eq!(
        cache.put(b"object", Durability::Plain).unwrap(),
        digest,
        "there is nothing to write"
    );
    say(&cache.ensure_writable().unwrap_err().to_string());
    say(&cache
        .put(b"other", Durability::Plain)
        .unwrap_err()
        .to_string());
    say(&cache
        .record_entry(&entry(TaskKind::Parse, 2, 1, 1))
        .unwrap_err()
        .to_string());
    say(&cache.lock_key(&digest).err().unwrap().to_string());
}

/// On a file system of 1 MiB; runs in a process of its own.
pub fn small_disk(root: &Path) {
    let cache = Cache::open(root).unwrap();
    say(&cache.ensure_writable().unwrap_err().to_string());
    let mut noise = vec![0; 2 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    say(&cache
        .put(&noise, Durability::Plain)
        .unwrap_err()
        .to_string());
    for n in 0.. {
        if let Err(e) = record_with_outputs(&cache, &attempt(n, 0, n, n)) {
            say(&e.to_string());
            let again = Cache::open(root).unwrap();
            assert!(
                (0..n).all(|n| again.attempts(&digest(n)).len() == 1)
                    && again.attempts(&digest(n)).is_empty()
            );
            return;
        }
    }
}

/// What a role says after `mount` was run.
fn on_a_mount(mount: &str, role: &str, root: &Path) -> Vec<String> {
    let role = process(role, root, 0);
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-ec",
        &format!("{mount} && exec \"$@\""),
        "sh",
    ]);
    command
        .arg(role.get_program())
        .args(role.get_args())
        .env("CACHE", root);
    command.envs(
        role.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said(&text).map(str::to_owned).collect()
}

#[test]
#[ignore = "mounts disks, which needs user namespaces: `make test-services`"]
fn a_read_only_cache_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    cache.put(b"object", Durability::Plain).unwrap();
    cache
        .record_entry(&entry(TaskKind::Parse, 1, 1, 1))
        .unwrap();
    let mount = "mount --bind \"$CACHE\" \"$CACHE\" && mount -o remount,bind,ro \"$CACHE\"";
    let said = on_a_mount(mount, "read only", folder.path());
    let expected = format!(
        "cannot write to the cache {}: Read-only file system (os error 30)",
        folder.path().display()
    );
    assert_eq!(said, vec![expected; 4]);
}

#[test]
#[ignore = "mounts disks, which needs user namespaces: `make test-services`"]
fn a_small_disk_is_refused_before_a_build_and_survived_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o mode=755,size=1m none \"$CACHE\"";
    let said = on_a_mount(mount, "small disk", folder.path());
    let cache = format!("cannot write to the cache {}: ", folder.path().display());
    let full = format!("{cache}No space left on device (os error 28)");
    let expected = [
        format!("{cache}its disk has 0 MiB free, and a build needs 16 MiB"),
        full.clone(),
        full,
    ];
    assert_eq!(said, expected);
}

#[test]
fn folders_that_go_missing_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("a/cache");
    let cache = Cache::open(&root).unwrap();
    for round in 0..3 {
        cache.ensure_writable().unwrap();
        let object = cache.put(b"object", Durability::Synced).unwrap();
        record_with_outputs(&cache, &attempt(round, 0, 1, 1)).unwrap();
        let again = Cache::open(&root).unwrap();
        assert!(again.has(&object) && again.attempts(&digest(round)).len() == 1);
        assert!(root.join("CACHEDIR.TAG").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}

/// Whoever recorded an attempt removes what it was made of.
#[test]
fn an_attempt_whose_output_is_gone_is_not_recorded_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let error = cache.record_attempt(&attempt(1, 0, 1, 1)).unwrap_err();
    assert!(
        error.to_string().contains("is gone from the cache"),
        "{error}"
    );
    record_with_outputs(&cache, &attempt(1, 0, 1, 1)).unwrap();
}

/// An object may be sound although this process cannot open it now.
#[test]
fn an_object_that_cannot_be_opened_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let attempt = attempt(1, 0, 1, 1);
    record_with_outputs(&cache, &attempt).unwrap();
    let object = cache.object_path(&attempt.outputs[0].digest);
    fs::remove_file(&object).unwrap();
    std::os::unix::fs::symlink(folder.path().join("CACHEDIR.TAG"), &object).unwrap();
    assert!(cache.record_attempt(&attempt).is_err());
    assert!(fs::symlink_metadata(&object).is_ok());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let error = cache
        .put_file(&folder.path().join("no.log"), Durability::Plain)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("no.log: No such file or directory (os error 2)"),
        "{error}"
    );
}

/// The lines of a log of 14 MiB, whose bytes are many times those of its file.
fn long_log() -> impl Iterator<Item = &'static [u8]> {
    std::iter::repeat_n(&b"step 1, loss 2.0, and so on\n"[..], 1 << 19)
}

/// Reads the log with so many KiB more than the process has; runs in a process of its own, which the
/// lack of memory may as well abort.
pub fn little_memory(root: &Path, more_kib: u32) {
    let cache = Cache::open(root).unwrap();
    // An allocator keeps for later what it had once, so the log is never whole here before it is read.
    let mut hasher = blake3::Hasher::new();
    for line in long_log() {
        hasher.update(line);
    }
    let digest = Digest(*hasher.finalize().as_bytes());
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * 4096 + u64::from(more_kib) * 1024;
    setrlimit(Resource::RLIMIT_AS, limit, nix::libc::RLIM_INFINITY).unwrap();
    let read = cache.get(&digest);
    let streamed = cache.stream(&digest, |_| Ok(()));
    let verified = cache
        .verify(&|_, _| ())
        .map(|found| found.damaged.is_empty());
    let lifted = nix::libc::RLIM_INFINITY;
    setrlimit(Resource::RLIMIT_AS, lifted, lifted).unwrap();
    let told = |result: Result<bool, Error>| match result {
        Ok(is_sound) => is_sound.to_string(),
        Err(error) => error.to_string(),
    };
    say(&format!(
        "read: {}",
        told(read.map(|bytes| bytes.is_some()))
    ));
    say(&format!("streamed: {}", told(streamed)));
    say(&format!("verified: {}", told(verified)));
}

#[test]
fn what_there_is_no_memory_to_read_is_left_and_is_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = Cache::open(&root).unwrap();
    let log: Vec<u8> = long_log().flatten().copied().collect();
    let digest = cache.put(&log, Durability::Plain).unwrap();
    let stored = || fs::read(cache.object_path(&digest)).ok();
    let before = stored();
    let mut told = Vec::new();
    for more_kib in [
        0,
        64,
        128,
        256,
        512,
        1 << 10,
        2 << 10,
        4 << 10,
        8 << 10,
        16 << 10,
        96 << 10,
    ] {
        let mut child = process("little memory", &root, more_kib);
        // The C library gives every other arena 64 MiB of addresses, which would be enough.
        child.env("MALLOC_ARENA_MAX", "1");
        let output = child.output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        told.extend(said(&output).map(|line| line.replace(root.to_str().unwrap(), "")));
        assert_eq!(stored(), before, "{more_kib} KiB: {output}");
    }
    let is_left = |line: &String| {
        line.ends_with(": true") || line.contains(": not enough memory to read /objects/")
    };
    assert!(told.iter().all(is_left), "{told:#?}");
    for (what, least) in [("read: true", 1), ("read: not", 3), ("streamed: true", 3)] {
        let found = told.iter().filter(|line| line.starts_with(what)).count();
        assert!(found >= least, "{what}: {told:#?}");
    }
}
