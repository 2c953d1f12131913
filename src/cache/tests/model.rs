//! Random operations of two writers, damage included, against a list of what was recorded; and
//! copies of caches, which are merged by whatever copies files.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use proptest::prelude::*;
use tprimat_base::files::{self, Durability};

use super::*;

const KINDS: [TaskKind; 3] = [TaskKind::Render, TaskKind::Parse, TaskKind::Report];
const KEYS: u32 = 5;

#[derive(Clone, Debug)]
enum Op {
    Put(u32),
    DeleteObject(u32),
    DamageObject(u32, prop::sample::Index),
    Entry {
        who: usize,
        key: u32,
        output: u32,
    },
    Attempt {
        who: usize,
        key: u32,
        generation: u32,
    },
    RepeatAttempt {
        who: usize,
        which: prop::sample::Index,
    },
    Verdict {
        who: usize,
        which: prop::sample::Index,
        is_set_aside: bool,
    },
    OpenGeneration {
        who: usize,
        key: u32,
    },
    Text {
        who: usize,
        text: u32,
    },
    Reopen {
        who: usize,
    },
    /// Changes a byte of a file below `records` or `made`.
    Damage {
        which: prop::sample::Index,
        place: prop::sample::Index,
    },
    Delete {
        which: prop::sample::Index,
    },
    /// Into another cache, and back.
    Copy,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (who, key, any_place) = (0..2usize, 0..KEYS, any::<prop::sample::Index>);
    let op = prop_oneof![
        3 => (0..4u32).prop_map(Op::Put),
        1 => (0..4u32).prop_map(Op::DeleteObject),
        1 => (0..4u32, any_place()).prop_map(|(n, place)| Op::DamageObject(n, place)),
        6 => (who.clone(), key.clone(), 0..9u32)
            .prop_map(|(who, key, output)| Op::Entry { who, key, output }),
        6 => (who.clone(), key.clone(), 0..3u32)
            .prop_map(|(who, key, generation)| Op::Attempt { who, key, generation }),
        1 => (who.clone(), any_place()).prop_map(|(who, which)| Op::RepeatAttempt { who, which }),
        4 => (who.clone(), any_place(), any::<bool>())
            .prop_map(|(who, which, is_set_aside)| Op::Verdict { who, which, is_set_aside }),
        2 => (who.clone(), key).prop_map(|(who, key)| Op::OpenGeneration { who, key }),
        2 => (who.clone(), 0..3u32).prop_map(|(who, text)| Op::Text { who, text }),
        2 => who.prop_map(|who| Op::Reopen { who }),
        2 => (any_place(), any_place()).prop_map(|(which, place)| Op::Damage { which, place }),
        1 => any_place().prop_map(|which| Op::Delete { which }),
        2 => Just(Op::Copy),
    ];
    proptest::collection::vec(op, 1..40)
}

/// What should be there.
#[derive(Default)]
struct Model {
    /// In the order in which they were recorded; one for each key.
    entries: Vec<Entry>,
    attempts: BTreeMap<(Digest, String), Attempt>,
    /// The last decision on each run.
    verdicts: BTreeMap<(Digest, String), Option<SetAside>>,
    generations: BTreeMap<Digest, u32>,
    texts: BTreeMap<Digest, String>,
    /// Whether its bytes are right.
    objects: BTreeMap<u32, bool>,
}

struct World {
    folder: tempfile::TempDir,
    root: PathBuf,
    caches: Vec<Cache>,
    model: Model,
    runs: u32,
}

fn blob(n: u32) -> Vec<u8> {
    format!("object {n} ")
        .repeat(if n.is_multiple_of(2) { 1 } else { 1000 })
        .into_bytes()
}

/// A key's entries are of one kind and one task.
fn made(key: u32, output: u32) -> Entry {
    entry(KINDS[key as usize % KINDS.len()], 100 + key, key, output)
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cache");
        let caches = vec![Cache::open(&root).unwrap(), Cache::open(&root).unwrap()];
        Self {
            folder,
            root,
            caches,
            model: Model::default(),
            runs: 0,
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let folders = fs::read_dir(self.root.join("records")).unwrap().flatten();
        let folders = folders.map(|folder| folder.path());
        for folder in folders.chain([self.root.join("made")]) {
            found.extend(fs::read_dir(folder).unwrap().flatten().map(|e| e.path()));
        }
        found.sort();
        found
    }

    /// Takes from the model what a file told that is damaged or gone. False: it is a mark.
    fn forget(&mut self, path: &std::path::Path) -> bool {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let key = |name: &str| name.parse::<Digest>().ok();
        if let Some(made) = key(name) {
            self.model.entries.retain(|entry| entry.key != made);
            return true;
        }
        let folder = path.parent().unwrap().file_name().unwrap();
        let of = key(folder.to_str().unwrap()).unwrap();
        self.model.attempts.remove(&(of, name.to_owned())).is_some()
    }

    fn pick_file(&self, which: prop::sample::Index) -> Option<PathBuf> {
        let files = self.files();
        (!files.is_empty()).then(|| which.get(files.as_slice()).clone())
    }

    fn pick(&self, which: prop::sample::Index) -> Option<Attempt> {
        let all: Vec<_> = self.model.attempts.values().collect();
        (!all.is_empty()).then(|| (*which.get(all.as_slice())).clone())
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Put(n) => {
                let put = self.caches[0].put(&blob(n), Durability::Plain).unwrap();
                assert_eq!(put, Digest::of(blob(n)));
                self.model.objects.insert(n, true);
                assert_eq!(self.caches[1].get(&put).unwrap(), Some(blob(n)));
            }
            Op::DeleteObject(n) => {
                let _ = fs::remove_file(self.caches[0].object_path(&Digest::of(blob(n))));
                self.model.objects.remove(&n);
            }
            Op::DamageObject(n, place) => {
                if let Some(is_sound) = self.model.objects.get_mut(&n) {
                    *is_sound = false;
                    flip(&self.caches[0].object_path(&Digest::of(blob(n))), place);
                }
            }
            Op::Entry { who, key, output } => {
                let entry = made(key, output);
                self.caches[who].record_entry(&entry).unwrap();
                self.model.entries.retain(|known| known.key != entry.key);
                self.model.entries.push(entry);
            }
            Op::Attempt {
                who,
                key,
                generation,
            } => {
                self.runs += 1;
                let attempt = attempt(key, generation, key, self.runs);
                record_with_outputs(&self.caches[who], &attempt).unwrap();
                let opened = self.model.generations.entry(attempt.key).or_default();
                *opened = generation.max(*opened);
                let id = (attempt.key, attempt.id.clone());
                self.model.attempts.insert(id, attempt);
            }
            Op::RepeatAttempt { who, which } => {
                if let Some(again) = self.pick(which) {
                    record_with_outputs(&self.caches[who], &again).unwrap();
                }
            }
            Op::Verdict {
                who,
                which,
                is_set_aside,
            } => {
                if let Some(attempt) = self.pick(which) {
                    let reason = format!("verdict {}", self.model.verdicts.len());
                    let verdict = is_set_aside.then_some(SetAside { reason, at: 1.5 });
                    let cache = &self.caches[who];
                    cache.set_aside(&attempt, verdict.as_ref()).unwrap();
                    self.model
                        .verdicts
                        .insert((attempt.key, attempt.id), verdict);
                }
            }
            Op::OpenGeneration { who, key } => {
                let next = self.model.generations.entry(digest(key)).or_default();
                *next += 1;
                assert_eq!(
                    self.caches[who].open_generation(&digest(key)).unwrap(),
                    *next
                );
            }
            Op::Text { who, text } => {
                let text = format!("text {text}");
                let digest = self.caches[who].record_preimage(&text).unwrap();
                self.model.texts.insert(digest, text);
            }
            Op::Reopen { who } => self.caches[who] = Cache::open(&self.root).unwrap(),
            Op::Damage { which, place } => {
                let Some(path) = self.pick_file(which) else {
                    return;
                };
                if self.forget(&path) {
                    flip(&path, place);
                    // A build says it once, and a person removes the file or brings it back.
                    let noted = Cache::open(&self.root).unwrap();
                    let _ = (noted.all_attempts(), noted.verify(&|_, _| ()).unwrap());
                    let is_made = path.parent() == Some(&self.root.join("made"));
                    assert_eq!(noted.faults().len(), usize::from(!is_made));
                    fs::remove_file(&path).unwrap();
                }
            }
            Op::Delete { which } => {
                if let Some(path) = self.pick_file(which)
                    && self.forget(&path)
                {
                    fs::remove_file(&path).unwrap();
                }
            }
            Op::Copy => self.copy(),
        }
        // The index of a process that saw a record go is as old as its first look.
        self.caches
            .iter_mut()
            .for_each(|cache| *cache = Cache::open(&self.root).unwrap());
        self.check();
    }

    /// Another cache takes everything by a pull, and a third one by `cp`: both tell the same.
    fn copy(&self) {
        let other = Cache::open(&self.folder.path().join("pulled")).unwrap();
        let remote = Remote::of_cache(&self.root);
        let listing = remote.list(None).unwrap();
        let pulled = remote.pull(&other, &listing, &|_, _| Ok(())).unwrap();
        assert!(pulled.cut.is_none(), "{pulled:?}");
        let copied = self.folder.path().join("copied");
        let copy = Command::new("cp")
            .args(["-rn", "--"])
            .arg(&self.root)
            .arg(&copied)
            .output();
        let copy = copy.unwrap();
        assert!(
            copy.status.success(),
            "{}",
            String::from_utf8_lossy(&copy.stderr)
        );
        let copied = Cache::open(&copied).unwrap();
        for key in (0..KEYS).map(digest) {
            let here: Vec<_> = self.caches[0].attempts(&key);
            let is_sound = |a: &&Attempt| copied.is_sound(&a.outputs[0].digest).unwrap();
            let whole: Vec<_> = here.iter().filter(is_sound).cloned().collect();
            for attempt in &whole {
                assert!(other.attempts(&key).contains(attempt), "{attempt:?}");
            }
            assert_eq!(other.generation(&key), self.caches[0].generation(&key));
        }
        fs::remove_dir_all(copied.root()).unwrap();
        fs::remove_dir_all(other.root()).unwrap();
    }

    /// All that was recorded is there, and nothing else.
    fn check(&self) {
        let model = &self.model;
        for cache in &self.caches {
            for (n, is_sound) in &model.objects {
                let found = cache.get(&Digest::of(blob(*n))).unwrap();
                // Some bits of a compressed file mean nothing: then the bytes are still right.
                let is_right = found.as_ref().is_some_and(|bytes| *bytes == blob(*n));
                assert!(is_right || (!is_sound && found.is_none()), "object {n}");
            }
            for key in (0..KEYS).map(digest) {
                let of_key = model.attempts.iter().filter(|((of, _), _)| *of == key);
                let mut attempts: Vec<Attempt> = of_key
                    .map(|(id, attempt)| Attempt {
                        set_aside: model.verdicts.get(id).cloned().flatten(),
                        ..attempt.clone()
                    })
                    .collect();
                attempts.sort_by_key(|a| (std::cmp::Reverse(a.generation), a.id.clone()));
                assert_eq!(plain(cache.attempts(&key)), attempts);
                let generation = model.generations.get(&key).copied().unwrap_or(0);
                assert_eq!(cache.generation(&key), generation);
            }
            let runs = cache.all_attempts();
            assert_eq!(runs.len(), model.attempts.len());
            assert!(runs.is_sorted_by_key(|run| run.recorded));
            for key in 0..KEYS {
                let one = made(key, 0);
                let known = model.entries.iter().find(|entry| entry.key == one.key);
                assert_eq!(
                    cache.outputs(&one.key),
                    known.map(|entry| entry.outputs.clone())
                );
                let of_task = |entry: &&Entry| entry.kind == one.kind && entry.task == one.task;
                let last = model.entries.iter().rev().find(of_task);
                assert_eq!(cache.last_of(one.kind, &one.task).as_ref(), last);
            }
            for kind in KINDS {
                let named = cache.entries_named(kind, |_| true);
                let of_kind = model.entries.iter().filter(|entry| entry.kind == kind);
                assert_eq!(named, of_kind.cloned().collect::<Vec<_>>());
            }
            for (digest, text) in &model.texts {
                assert_eq!(cache.preimage(digest).as_ref(), Some(text));
            }
            assert_eq!(cache.faults(), Faults::default());
        }
    }
}

fn flip(path: &std::path::Path, place: prop::sample::Index) {
    let mut bytes = fs::read(path).unwrap();
    let place = place.index(bytes.len());
    // Twice the same damage must not be a repair.
    bytes[place] = bytes[place].wrapping_add(1);
    fs::remove_file(path).unwrap();
    files::write_atomically(path, &bytes, Durability::Plain).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_recorded_is_there_and_nothing_else(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
    }
}

/// What stands in odd places is told, left where it is, and stops nobody.
#[test]
fn strange_files_in_the_place_of_records_are_survived() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = Cache::open(&root).unwrap();
    let (one, two) = (attempt(1, 0, 1, 1), attempt(1, 0, 1, 2));
    record_with_outputs(&cache, &one).unwrap();
    let records = root.join("records").join(one.key.to_string());
    let place = |name: &str| records.join(name);
    let home = folder.path().join("home");
    files::write_atomically(&home, b"thesis", Durability::Plain).unwrap();
    std::os::unix::fs::symlink(&home, place("link.json")).unwrap();
    files::create_dir_all(&place("folder.json")).unwrap();
    nix::unistd::mkfifo(&place("pipe.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, bytes) in [
        ("empty.json", &b""[..]),
        ("zeros.json", &[0; 5000]),
        ("README", b"?"),
    ] {
        files::write_atomically(&place(name), bytes, Durability::Plain).unwrap();
    }
    // A sound record under another name is no record of that name.
    let sound = fs::read(place(&format!("{}.json", one.id))).unwrap();
    files::write_atomically(&place("renamed.json"), &sound, Durability::Plain).unwrap();
    record_with_outputs(&cache, &two).unwrap();
    let cache = Cache::open(&root).unwrap();
    assert_eq!(plain(cache.attempts(&one.key)), [one, two.clone()]);
    assert_eq!(cache.faults().len(), 6, "{:?}", cache.faults());
    let checked = cache.attempts_checked(&two.key);
    assert_eq!(checked.unwrap().len(), 2, "what is damaged is known to be");
    assert_eq!(cache.verify(&|_, _| ()).unwrap().damaged_records.len(), 6);
    let error = cache.garbage(None).unwrap_err().to_string();
    assert!(error.contains("nothing was removed"), "{error}");
    assert_eq!(fs::read(&home).unwrap(), b"thesis");
    assert!(place("pipe.json").symlink_metadata().is_ok());
}

/// What cannot be read now may be sound: no run may be made again because of it.
#[test]
fn a_record_that_cannot_be_read_now_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache")).unwrap();
    let one = attempt(1, 0, 1, 1);
    record_with_outputs(&cache, &one).unwrap();
    let key = cache.root().join("records").join(one.key.to_string());
    let kept = folder.path().join("kept");
    files::move_to(&key, &kept).unwrap();
    // A loop of links: what the kernel says of it is not that nothing is there.
    std::os::unix::fs::symlink("loop-b", key.with_file_name("loop-a")).unwrap();
    std::os::unix::fs::symlink("loop-a", key.with_file_name("loop-b")).unwrap();
    std::os::unix::fs::symlink("loop-a", &key).unwrap();
    assert!(cache.attempts(&one.key).is_empty());
    let error = cache.attempts_checked(&one.key).unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
    fs::remove_file(&key).unwrap();
    files::move_to(&kept, &key).unwrap();
    assert_eq!(plain(cache.attempts_checked(&one.key).unwrap()), [one]);
    assert_eq!(cache.faults(), Faults::default(), "it is read again");
}
