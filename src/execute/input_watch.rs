//! The kernel's word of each write to a run's inputs (inotify), so that an edit which is taken back
//! before anybody looks is seen as well. It knows of this host's writes only: what another host
//! writes to a shared file system is seen by the looks of [`watched_inputs`](super::watched_inputs).

mod queue;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, PipeReader, PipeWriter},
    mem,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor},
};

use super::{run::lock, watched_inputs::Watched};
pub(super) use queue::Queue;

/// Two writes of one file within this time may be an edit and its end, whatever is there now.
const PUT_BACK: Duration = Duration::from_secs(1);
/// Between two readings of events: a run that writes in these folders all the time is not slowed by
/// it.
const NAP: Duration = Duration::from_millis(100);

/// Watches until it is told to finish. The kernel does from the start; what it tells is taken in by a
/// thread, which no trainer waits for.
pub(super) struct InputWatch {
    changed: Arc<Mutex<BTreeSet<String>>>,
    /// Until the thread has it.
    watch: Option<(Queue, Vec<Input>)>,
    follower: Option<Follower>,
}

struct Follower {
    end: PipeWriter,
    thread: JoinHandle<()>,
}

impl InputWatch {
    /// Answers with how many files the kernel does not watch as well: it has a limit for each user.
    /// `queue`: the one that tprimat handed over; without it a new one is made.
    pub fn start(queue: Option<Queue>, watched: &[Watched]) -> (Option<Self>, usize) {
        let files: Vec<(Watched, PathBuf)> = watched
            .iter()
            .filter(|one| one.is_watchable())
            .flat_map(|one| one.files().into_iter().map(|file| (one.clone(), file)))
            .collect();
        let all = files.len();
        let Some(mut queue) = queue.or_else(Queue::new) else {
            return (None, all);
        };
        // What an earlier run's inputs had told.
        queue.events();
        let inputs: Vec<Input> = files
            .into_iter()
            .filter_map(|(one, file)| Input::watch(&mut queue, one, file))
            .collect();
        let unwatched = all - inputs.iter().filter(|input| input.is_kept_apart).count();
        if inputs.is_empty() {
            return (None, unwatched);
        }
        let watch = Self {
            changed: Arc::default(),
            watch: Some((queue, inputs)),
            follower: None,
        };
        (Some(watch), unwatched)
    }

    /// Takes in what is told from now on, and what was told before. Where this host has no thread
    /// left, all of it is taken in at the end.
    pub fn follow(&mut self) {
        let Some((ended, end)) = io::pipe().ok().filter(|_| self.watch.is_some()) else {
            return;
        };
        let (hand_over, watch) = mpsc::channel();
        let changed = self.changed.clone();
        let thread = thread::Builder::new().name("inputs".into()).spawn(move || {
            if let Ok((queue, inputs)) = watch.recv() {
                follow(queue, inputs, &ended, &changed);
            }
        });
        if let Ok(thread) = thread {
            let _ = self.watch.take().map(|watch| hand_over.send(watch));
            self.follower = Some(Follower { end, thread });
        }
    }

    /// Marks the inputs that were seen to be written so far.
    pub fn mark(&self, watched: &mut [Watched]) {
        mark(&lock(&self.changed), watched);
    }

    /// Marks all inputs that were written until now.
    pub fn finish(self, watched: &mut [Watched]) {
        if let Some(Follower { end, thread }) = self.follower {
            drop(end);
            let _ = thread.join();
        }
        if let Some((mut queue, mut inputs)) = self.watch {
            take_in(&mut queue, &mut inputs, &self.changed);
        }
        mark(&lock(&self.changed), watched);
    }
}

fn mark(changed: &BTreeSet<String>, watched: &mut [Watched]) {
    for one in watched.iter_mut().filter(|one| changed.contains(&one.name)) {
        one.mark_changed();
    }
}

/// One file of an input.
struct Input {
    watched: Watched,
    path: PathBuf,
    name: OsString,
    /// Where its writes are told, and renames that put another file in its place.
    folder: WatchDescriptor,
    /// Are two renames in a row told as two?
    is_kept_apart: bool,
    /// A write has begun.
    is_open: bool,
    written_at: Option<Instant>,
}

impl Input {
    fn watch(queue: &mut Queue, watched: Watched, path: PathBuf) -> Option<Self> {
        // Whoever writes through a link writes the file behind it.
        let path = path.canonicalize().ok()?;
        let writes =
            AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
        let folder = queue.add(path.parent()?, writes)?;
        Some(Self {
            is_kept_apart: keep_apart(queue, &path),
            name: path.file_name()?.to_owned(),
            folder,
            watched,
            path,
            is_open: false,
            written_at: None,
        })
    }

    /// How many writes of it these events end. Between its parts a write holds nothing that anybody
    /// meant.
    fn writes(&mut self, events: &[InotifyEvent]) -> usize {
        let mut ended = 0;
        for event in events {
            // The queue was full, and nobody knows what was not told.
            ended += usize::from(event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
            if event.wd != self.folder || event.name.as_ref() != Some(&self.name) {
                continue;
            }
            if event.mask.contains(AddWatchFlags::IN_MODIFY) {
                self.is_open = true;
            } else if event.mask.contains(AddWatchFlags::IN_MOVED_TO) || self.is_open {
                // Who writes a file and renames it may close it later.
                self.is_open = false;
                ended += 1;
            }
        }
        ended
    }

    /// Had it another content than planned? That of two writes in a row nobody knows.
    fn has_changed(&mut self, writes: usize) -> bool {
        let last = self.written_at.replace(Instant::now());
        let is_again = writes > 1 || last.is_some_and(|last| last.elapsed() < PUT_BACK);
        is_again || !self.watched.is_as_planned()
    }
}

/// The kernel tells two renames in a row as one, unless the end of the first file's name is told
/// between them. False: it cannot be told.
fn keep_apart(queue: &mut Queue, file: &Path) -> bool {
    queue.add(file, AddWatchFlags::IN_ATTRIB).is_some()
}

fn follow(
    mut queue: Queue,
    mut inputs: Vec<Input>,
    ended: &PipeReader,
    changed: &Mutex<BTreeSet<String>>,
) {
    let nap = PollTimeout::try_from(NAP).unwrap_or(PollTimeout::ZERO);
    let mut is_over = false;
    while !is_over {
        let end = PollFd::new(ended.as_fd(), PollFlags::POLLIN);
        let mut both = [PollFd::new(queue.as_fd(), PollFlags::POLLIN), end];
        let _ = poll(&mut both, PollTimeout::NONE);
        // A nap, unless the run has ended.
        is_over = poll(&mut both[1..], nap).is_ok_and(|ready| ready > 0);
        take_in(&mut queue, &mut inputs, changed);
    }
}

/// What was told since the last time; an input that has changed is watched no more.
fn take_in(queue: &mut Queue, inputs: &mut Vec<Input>, changed: &Mutex<BTreeSet<String>>) {
    let events = queue.events();
    for mut input in mem::take(inputs) {
        let writes = input.writes(&events);
        if writes > 0 && input.has_changed(writes) {
            lock(changed).insert(input.watched.name);
            continue;
        }
        if writes > 0 {
            // It may be another file now.
            input.is_kept_apart = keep_apart(queue, &input.path);
        }
        inputs.push(input);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        digest::Digest,
        files::{Durability, write_atomically},
    };

    const LONG: Duration = NAP.saturating_mul(3);

    /// Is the file marked after what was done to it while it was watched?
    fn is_marked(work: impl FnOnce(&Path)) -> bool {
        is_marked_by(None, work)
    }

    fn is_marked_by(queue: Option<Queue>, work: impl FnOnce(&Path)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"planned", Durability::Plain).unwrap();
        let mut one = Watched::file("file", path.clone(), Digest::of("planned"), None);
        assert!(one.is_as_planned());
        let mut watched = [one];
        let (watch, unwatched) = InputWatch::start(queue, &watched);
        assert_eq!(unwatched, 0);
        let mut watch = watch.unwrap();
        watch.follow();
        work(&path);
        watch.finish(&mut watched);
        watched[0].is_written()
    }

    #[test]
    fn a_queue_that_another_run_had_tells_each_run_of_its_own_inputs() {
        let kept = Queue::new().unwrap();
        let queue = || Some(kept.twin());
        let edit_and_put_back = |path: &Path| {
            in_place(path, "another");
            in_place(path, "planned");
        };
        assert!(is_marked_by(queue(), edit_and_put_back));
        assert!(!is_marked_by(queue(), |_| {}));
        assert!(is_marked_by(queue(), edit_and_put_back));
    }

    #[test]
    fn files_that_the_kernel_does_not_watch_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        write_atomically(&there, b"planned", Durability::Plain).unwrap();
        let watched = [there, folder.path().join("gone/file")]
            .map(|path| Watched::file("file", path, Digest::of("planned"), None));
        let (watch, unwatched) = InputWatch::start(None, &watched);
        assert_eq!((watch.is_some(), unwatched), (true, 1));
    }

    #[expect(clippy::disallowed_methods, reason = "plays an editor")]
    fn in_place(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
    }

    fn by_rename(path: &Path, text: &str) {
        write_atomically(path, text.as_bytes(), Durability::Plain).unwrap();
    }

    fn from_another_folder(path: &Path, text: &str) {
        let folder = tempfile::tempdir_in(path.parent().unwrap()).unwrap();
        by_rename(&folder.path().join("new"), text);
        #[expect(clippy::disallowed_methods, reason = "plays an editor")]
        fs::rename(folder.path().join("new"), path).unwrap();
    }

    const EDITORS: [fn(&Path, &str); 3] = [in_place, by_rename, from_another_folder];

    #[test]
    fn an_edit_that_is_taken_back_at_once_is_seen() {
        let pairs = EDITORS
            .iter()
            .flat_map(|edit| EDITORS.iter().map(move |back| (edit, back)));
        thread::scope(|scope| {
            for (edit, put_back) in pairs {
                scope.spawn(move || {
                    assert!(is_marked(|path| {
                        edit(path, "another");
                        put_back(path, "planned");
                    }));
                });
                scope.spawn(move || {
                    assert!(is_marked(|path| {
                        put_back(path, "planned");
                        thread::sleep(PUT_BACK + LONG);
                        edit(path, "another");
                        thread::sleep(LONG);
                        put_back(path, "planned");
                    }));
                });
            }
        });
    }

    #[test]
    fn a_touch_a_link_and_the_same_bytes_written_again_are_no_edit() {
        assert!(!is_marked(|path| {
            let file = fs::File::open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap();
            fs::hard_link(path, path.with_extension("link")).unwrap();
            by_rename(&path.with_extension("other"), "beside it");
        }));
        thread::scope(|scope| {
            for write in EDITORS {
                scope.spawn(move || {
                    assert!(!is_marked(|path| {
                        write(path, "planned");
                        thread::sleep(PUT_BACK + LONG);
                        write(path, "planned");
                    }));
                });
            }
        });
    }

    #[test]
    fn what_is_written_beside_an_input_without_end_holds_nothing_up() {
        assert!(!is_marked(|path| {
            let beside = [path.with_extension("a"), path.with_extension("b")];
            let is_over = std::sync::atomic::AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        beside.iter().for_each(|file| in_place(file, "more"));
                    }
                });
                thread::sleep(LONG);
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
        }));
    }

    #[test]
    fn a_run_that_writes_one_of_its_inputs_all_the_time_is_told_once() {
        assert!(is_marked(|path| {
            for number in 0..1000 {
                in_place(path, &number.to_string());
            }
        }));
    }
}
