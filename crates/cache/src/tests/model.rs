//! Random operations of two writers, damage included, against a list of what was recorded.

use std::{collections::BTreeMap, fs, path::PathBuf};

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
        kind: usize,
        key: u32,
        task: u32,
        output: u32,
    },
    Attempt {
        who: usize,
        key: u32,
        generation: u32,
        task: u32,
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
    Preimage {
        who: usize,
        text: u32,
    },
    Reopen {
        who: usize,
    },
    Snapshot {
        who: usize,
    },
    DamageSnapshot(prop::sample::Index),
    DeleteSnapshot,
    Repair,
    Truncate(prop::sample::Index),
    DamageSegment(prop::sample::Index, prop::sample::Index),
    Check,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (who, key, task, any_place) = (0..2usize, 0..KEYS, 0..3u32, any::<prop::sample::Index>);
    let op = prop_oneof![
        3 => (0..4u32).prop_map(Op::Put),
        1 => (0..4u32).prop_map(Op::DeleteObject),
        1 => (0..4u32, any_place()).prop_map(|(n, place)| Op::DamageObject(n, place)),
        8 => (who.clone(), 0..KINDS.len(), key.clone(), task.clone(), 0..9u32)
            .prop_map(|(who, kind, key, task, output)| Op::Entry { who, kind, key, task, output }),
        4 => (who.clone(), key.clone(), 0..3u32, task)
            .prop_map(|(who, key, generation, task)| Op::Attempt { who, key, generation, task }),
        1 => (who.clone(), any_place()).prop_map(|(who, which)| Op::RepeatAttempt { who, which }),
        3 => (who.clone(), any_place(), any::<bool>())
            .prop_map(|(who, which, is_set_aside)| Op::Verdict { who, which, is_set_aside }),
        1 => (who.clone(), key).prop_map(|(who, key)| Op::OpenGeneration { who, key }),
        2 => (who.clone(), 0..3u32).prop_map(|(who, text)| Op::Preimage { who, text }),
        2 => who.clone().prop_map(|who| Op::Reopen { who }),
        2 => who.prop_map(|who| Op::Snapshot { who }),
        1 => any_place().prop_map(Op::DamageSnapshot),
        1 => Just(Op::DeleteSnapshot),
        1 => Just(Op::Repair),
        2 => any_place().prop_map(Op::Truncate),
        1 => (any_place(), any_place()).prop_map(|(segment, place)| Op::DamageSegment(segment, place)),
        2 => Just(Op::Check),
    ];
    proptest::collection::vec(op, 1..40)
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a few hundred of them")]
enum Recorded {
    Entry(Entry),
    Attempt(Attempt),
    Generation(Digest, u32),
    Preimage(String),
    Verdict(Digest, String, Option<SetAside>),
}

/// A record and the bytes of a segment that it was seen to take.
struct Event {
    recorded: Recorded,
    file: String,
    start: u64,
    end: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Object {
    Sound,
    Damaged,
}

struct World {
    _folder: tempfile::TempDir,
    root: PathBuf,
    caches: Vec<Cache>,
    events: Vec<Event>,
    objects: BTreeMap<u32, Object>,
    attempts: u32,
}

fn blob(n: u32) -> Vec<u8> {
    format!("object {n} ")
        .repeat(if n.is_multiple_of(2) { 1 } else { 1000 })
        .into_bytes()
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cache");
        let caches = vec![Cache::open(&root).unwrap(), Cache::open(&root).unwrap()];
        let (events, objects) = (Vec::new(), BTreeMap::new());
        Self {
            _folder: folder,
            root,
            caches,
            events,
            objects,
            attempts: 0,
        }
    }

    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.root.join("segments"))
            .unwrap()
            .map(Result::unwrap);
        entries
            .map(|e| {
                (
                    e.file_name().into_string().unwrap(),
                    fs::read(e.path()).unwrap(),
                )
            })
            .collect()
    }

    fn record(&mut self, recorded: Recorded, append: impl FnOnce(&Self)) {
        let before = self.contents();
        append(self);
        let after = self.contents();
        let changed: Vec<_> = after
            .iter()
            .filter(|(name, bytes)| before.get(*name) != Some(bytes))
            .collect();
        let [(file, bytes)] = changed[..] else {
            panic!("one record changed {} files", changed.len())
        };
        // A repair leaves frames that are nobody's record.
        let mut start = 0;
        let segment = fs::File::open(self.root.join("segments").join(file)).unwrap();
        frame::scan(&segment, 0, |mark, _| start = mark.offset).unwrap();
        self.events.push(Event {
            recorded,
            file: file.clone(),
            start,
            end: bytes.len() as u64,
        });
    }

    /// Closes both, changes the files, opens both again.
    fn behind_the_back(&mut self, change: impl FnOnce(&mut Self)) {
        self.caches.clear();
        change(self);
        self.caches = vec![
            Cache::open(&self.root).unwrap(),
            Cache::open(&self.root).unwrap(),
        ];
    }

    fn overwrite(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.root.join(file);
        let Ok(mut bytes) = fs::read(&path) else {
            return;
        };
        change(&mut bytes);
        files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Put(n) => {
                assert_eq!(
                    self.caches[0].put(&blob(n), Durability::Plain).unwrap(),
                    Digest::of(blob(n))
                );
                self.objects.insert(n, Object::Sound);
                assert_eq!(
                    self.caches[1].get(&Digest::of(blob(n))).unwrap().unwrap(),
                    blob(n)
                );
            }
            Op::DeleteObject(n) => {
                let _ = fs::remove_file(self.caches[0].object_path(&Digest::of(blob(n))));
                self.objects.remove(&n);
            }
            Op::DamageObject(n, place) => {
                if let Some(object) = self.objects.get_mut(&n) {
                    *object = Object::Damaged;
                    let path = self.caches[0].object_path(&Digest::of(blob(n)));
                    self.overwrite(path.to_str().unwrap(), |bytes| {
                        let place = place.index(bytes.len());
                        // Twice the same damage must not be a repair.
                        bytes[place] = bytes[place].wrapping_add(1);
                    });
                }
            }
            Op::Entry {
                who,
                kind,
                key,
                task,
                output,
            } => {
                let entry = entry(KINDS[kind], key, task, output);
                self.record(Recorded::Entry(entry.clone()), |w| {
                    w.caches[who].record_entry(&entry).unwrap()
                });
                assert_eq!(
                    outputs(&self.caches[who].entry(&entry.key).unwrap()),
                    entry.outputs
                );
                assert_eq!(
                    self.caches[who].last_of(entry.kind, &entry.task),
                    Some(entry)
                );
            }
            Op::Attempt {
                who,
                key,
                generation,
                task,
            } => {
                self.attempts += 1;
                let attempt = attempt(key, generation, task, self.attempts);
                self.record(Recorded::Attempt(attempt.clone()), |w| {
                    record_with_outputs(&w.caches[who], &attempt).unwrap()
                });
                assert!(plain(self.caches[who].attempts(&attempt.key)).contains(&attempt));
            }
            Op::RepeatAttempt { who, which } => {
                let attempts = self.recorded_attempts();
                if !attempts.is_empty() {
                    let again = which.get(&attempts).clone();
                    self.record(Recorded::Attempt(again.clone()), |w| {
                        record_with_outputs(&w.caches[who], &again).unwrap()
                    });
                }
            }
            Op::Verdict {
                who,
                which,
                is_set_aside,
            } => {
                let attempts = self.recorded_attempts();
                if !attempts.is_empty() {
                    let attempt = which.get(&attempts).clone();
                    let reason = format!("verdict {}", self.events.len());
                    let verdict = is_set_aside.then_some(SetAside { reason, at: 1.5 });
                    let recorded =
                        Recorded::Verdict(attempt.key, attempt.id.clone(), verdict.clone());
                    self.record(recorded, |w| {
                        w.caches[who].set_aside(&attempt, verdict.as_ref()).unwrap()
                    });
                }
            }
            Op::OpenGeneration { who, key } => {
                let next = self.generation(&digest(key)) + 1;
                self.record(Recorded::Generation(digest(key), next), |w| {
                    assert_eq!(w.caches[who].open_generation(&digest(key)).unwrap(), next);
                });
            }
            Op::Preimage { who, text } => {
                let text = format!("text {text}");
                if self.caches[who].preimage(&Digest::of(&text)).is_none() {
                    self.record(Recorded::Preimage(text.clone()), |w| {
                        assert_eq!(
                            w.caches[who].record_preimage(&text).unwrap(),
                            Digest::of(&text)
                        );
                    });
                }
                let before = self.contents();
                self.caches[who].record_preimage(&text).unwrap();
                assert_eq!(self.contents(), before, "known texts are not written again");
            }
            Op::Reopen { who } => self.caches[who] = Cache::open(&self.root).unwrap(),
            Op::Snapshot { who } => self.caches[who].write_snapshot().unwrap(),
            Op::DamageSnapshot(place) => self.overwrite("snapshot", |bytes| {
                let place = place.index(bytes.len());
                bytes[place] = bytes[place].wrapping_add(1);
            }),
            Op::DeleteSnapshot => drop(fs::remove_file(self.root.join("snapshot"))),
            Op::Repair => self.behind_the_back(|world| {
                assert_eq!(repaired(&world.root).left, []);
                assert_eq!(repaired(&world.root), Repair::default());
            }),
            Op::Truncate(place) => self.behind_the_back(|world| {
                let Some((file, bytes)) = world.contents().pop_last() else {
                    return;
                };
                let cut = place.index(bytes.len() + 1) as u64;
                let segment = fs::OpenOptions::new()
                    .write(true)
                    .open(world.root.join("segments").join(&file));
                segment.unwrap().set_len(cut).unwrap();
                world.events.retain(|e| e.file != file || e.end <= cut);
            }),
            Op::DamageSegment(segment, place) => self.behind_the_back(|world| {
                let files: Vec<_> = world
                    .contents()
                    .into_iter()
                    .filter(|(_, bytes)| !bytes.is_empty())
                    .collect();
                if files.is_empty() {
                    return;
                }
                let (file, bytes) = segment.get(&files);
                let place = place.index(bytes.len()) as u64;
                world.overwrite(&format!("segments/{file}"), |bytes| {
                    let byte = &mut bytes[place as usize];
                    *byte = byte.wrapping_add(1);
                });
                world
                    .events
                    .retain(|e| e.file != *file || !(e.start..e.end).contains(&place));
                // It holds copies of what was damaged.
                let _ = fs::remove_file(world.root.join("snapshot"));
            }),
            Op::Check => self.check(),
        }
    }

    fn recorded_attempts(&self) -> Vec<Attempt> {
        let attempts = self.events.iter().filter_map(|e| match &e.recorded {
            Recorded::Attempt(attempt) => Some(attempt.clone()),
            _ => None,
        });
        attempts.collect()
    }

    fn generation(&self, of: &Digest) -> u32 {
        let generations = self.events.iter().map(|e| match &e.recorded {
            Recorded::Generation(key, generation)
            | Recorded::Attempt(Attempt {
                key, generation, ..
            }) if key == of => *generation,
            _ => 0,
        });
        generations.max().unwrap_or(0)
    }

    /// All that was recorded is there, and nothing else.
    fn check(&mut self) {
        for (n, object) in self.objects.clone() {
            let found = self.caches[0].get(&Digest::of(blob(n))).unwrap();
            // Some bits of a compressed file mean nothing: then the bytes are still right.
            assert!(
                found.as_ref().is_some_and(|bytes| *bytes == blob(n))
                    || (object == Object::Damaged && found.is_none())
            );
        }
        // Whoever read a damaged one left it where it is.
        for n in 0..4 {
            assert_eq!(
                self.caches[1].has(&Digest::of(blob(n))),
                self.objects.contains_key(&n)
            );
        }
        for cache in &self.caches {
            cache.refresh().unwrap();
            let latest = |wanted: &dyn Fn(&Entry) -> bool, trainings: bool| {
                self.events.iter().rev().find_map(|e| match &e.recorded {
                    Recorded::Entry(entry) if wanted(entry) => Some(entry.clone()),
                    Recorded::Attempt(Attempt {
                        key,
                        task,
                        preimage,
                        outputs,
                        ..
                    }) if trainings => {
                        let (task, preimage, outputs) =
                            (task.clone(), preimage.clone(), outputs.clone());
                        Some(Entry {
                            key: *key,
                            kind: TaskKind::Train,
                            task,
                            preimage,
                            outputs,
                        })
                        .filter(|e| wanted(e))
                    }
                    _ => None,
                })
            };
            for key in (0..KEYS).map(digest) {
                let found = cache.entry(&key);
                let found = found.map(|e| outputs(&e));
                assert_eq!(found, latest(&|e| e.key == key, false).map(|e| e.outputs));

                let mut attempts: BTreeMap<_, Attempt> = BTreeMap::new();
                for e in &self.events {
                    if let Recorded::Attempt(attempt) = &e.recorded
                        && attempt.key == key
                    {
                        attempts.insert(
                            (u32::MAX - attempt.generation, attempt.id.clone()),
                            attempt.clone(),
                        );
                    }
                }
                for e in &self.events {
                    if let Recorded::Verdict(of, id, verdict) = &e.recorded
                        && *of == key
                    {
                        let decided = attempts.values_mut().filter(|attempt| attempt.id == *id);
                        decided.for_each(|attempt| attempt.set_aside.clone_from(verdict));
                    }
                }
                assert_eq!(
                    plain(cache.attempts(&key)),
                    attempts.into_values().collect::<Vec<_>>()
                );
                assert_eq!(cache.generation(&key), self.generation(&key));
            }
            for task in (0..3).map(|n| format!("task {n}")) {
                for kind in [TaskKind::Train].into_iter().chain(KINDS) {
                    let expected = latest(&|e| e.kind == kind && e.task == task, true);
                    assert_eq!(cache.last_of(kind, &task), expected, "{kind:?} {task}");
                }
            }
            for text in (0..3).map(|n| format!("text {n}")) {
                let known = self
                    .events
                    .iter()
                    .any(|e| matches!(&e.recorded, Recorded::Preimage(t) if *t == text));
                assert_eq!(cache.preimage(&Digest::of(&text)), known.then_some(text));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_model(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
        world.check();
    }
}

/// Bytes that are no segment and no snapshot at all.
#[test]
fn foreign_files_are_survived() {
    let world = World::new();
    for bytes in [
        &b""[..],
        b"\xf7tp\xfb",
        &[0; 5000],
        "текст".repeat(1000).as_bytes(),
    ] {
        for name in ["segments/0007-x.seg", "segments/no-number.seg", "snapshot"] {
            files::write_atomically(&world.root.join(name), bytes, Durability::Plain).unwrap();
        }
        let cache = Cache::open(&world.root).unwrap();
        let entry = entry(TaskKind::Parse, 1, 1, 1);
        cache.record_entry(&entry).unwrap();
        assert_eq!(
            Cache::open(&world.root)
                .unwrap()
                .last_of(entry.kind, &entry.task),
            Some(entry)
        );
    }
}
