//! Work on rows, shared out to the threads that libtorch's own work runs on.
//!
//! libtorch and its products run on the pool of an OpenMP library that is part of this process. A
//! second pool would wait for the same cores, so loops go to that one, through the call that
//! compilers make for a parallel region. Where there is no such library, loops run on one thread.

use std::{
    ffi::{c_uint, c_void},
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use libloading::os::unix::{Library, Symbol};

/// Elements below which a thread of its own does not pay: libtorch's own bound.
const ELEMENTS_A_THREAD: usize = 1 << 15;

type Region = unsafe extern "C" fn(*mut c_void);

pub struct Threads {
    openmp: Option<OpenMp>,
    pub count: usize,
    elements_a_thread: usize,
}

struct OpenMp {
    parallel: Symbol<unsafe extern "C" fn(Region, *mut c_void, c_uint, c_uint)>,
}

/// What every thread of a region is told.
struct Work<'a> {
    /// The next piece that no thread has: who takes it does not follow from a thread's number, so
    /// no piece is done twice, whichever library counts the threads.
    next: AtomicUsize,
    pieces: usize,
    body: &'a (dyn Fn(usize) + Sync),
}

impl Threads {
    /// As many as libtorch uses.
    pub fn of_libtorch() -> Self {
        let process = Library::this();
        // SAFETY: the types of these functions are fixed by OpenMP and by the ABI of GNU's and
        // LLVM's libraries; nothing that libtorch links is ever unloaded.
        let openmp = unsafe {
            (|| {
                Ok::<_, libloading::Error>(OpenMp {
                    parallel: process.get(b"GOMP_parallel\0")?,
                })
            })()
        };
        let openmp = openmp.ok();
        let count = match openmp {
            Some(_) => tch::get_num_threads().max(1) as usize,
            None => 1,
        };
        Self {
            openmp,
            count,
            elements_a_thread: ELEMENTS_A_THREAD,
        }
    }

    /// So many, also where there is little work.
    #[cfg(test)]
    pub fn always(count: usize) -> Self {
        Self {
            count,
            elements_a_thread: 1,
            ..Self::of_libtorch()
        }
    }

    /// Calls `body` with a number and some of the `rows`, once for each piece, all at the same time.
    /// How many pieces there are depends on the number of threads and the work alone. Returns it.
    pub fn split(
        &self,
        rows: usize,
        elements_a_row: usize,
        body: impl Fn(usize, Range<usize>) + Sync,
    ) -> usize {
        let pieces = (rows * elements_a_row / self.elements_a_thread)
            .min(rows)
            .clamp(1, self.count);
        let body = |piece| body(piece, rows * piece / pieces..rows * (piece + 1) / pieces);
        match &self.openmp {
            Some(openmp) if pieces > 1 => openmp.run(self.count, pieces, &body),
            _ => (0..pieces).for_each(body),
        }
        pieces
    }
}

impl OpenMp {
    fn run(&self, threads: usize, pieces: usize, body: &(dyn Fn(usize) + Sync)) {
        unsafe extern "C" fn region(work: *mut c_void) {
            // SAFETY: `run` passes a `Work` that outlives the region; threads share it.
            let work = unsafe { &*work.cast::<Work>() };
            loop {
                let piece = work.next.fetch_add(1, Ordering::Relaxed);
                if piece >= work.pieces {
                    break;
                }
                (work.body)(piece);
            }
        }
        let mut work = Work {
            next: AtomicUsize::new(0),
            pieces,
            body,
        };
        // All threads, also where some get nothing: GNU's library ends those that a region leaves
        // out, and starts them again for the next one.
        // SAFETY: as above; the call returns when all threads have.
        unsafe {
            (self.parallel)(region, (&raw mut work).cast(), threads as c_uint, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_row_is_in_one_piece() {
        for (count, rows) in [(1, 7), (3, 7), (4, 2), (2, 100)] {
            let threads = Threads::always(count);
            assert!(
                threads.openmp.is_some(),
                "the library of libtorch's threads was not found"
            );
            let seen = Mutex::new(Vec::new());
            let pieces = threads.split(rows, 1, |piece, rows| {
                seen.lock().unwrap().push((piece, rows));
            });
            let mut seen = seen.into_inner().unwrap();
            seen.sort_by_key(|(piece, _)| *piece);
            assert_eq!(seen.len(), pieces);
            assert_eq!(pieces, count.min(rows));
            let all: Vec<usize> = seen.into_iter().flat_map(|(_, rows)| rows).collect();
            assert_eq!(all, (0..rows).collect::<Vec<_>>());
        }
        let alone = Threads {
            elements_a_thread: 1000,
            ..Threads::always(4)
        };
        assert_eq!(alone.split(10, 100, |_, _| ()), 1, "too little for two");
        assert_eq!(alone.split(30, 100, |_, _| ()), 3);
    }
}
