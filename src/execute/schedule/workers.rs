//! The threads that run tasks. One whose task has ended waits for the next: to start a thread takes
//! longer than to wake one, and a short run waits for it.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// Threads that wait for a task, and what was given to them.
pub(super) struct Workers<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    tasks: VecDeque<T>,
    waiting: usize,
    is_over: bool,
}

impl<T> Workers<T> {
    pub fn new() -> Self {
        let state = State {
            tasks: VecDeque::new(),
            waiting: 0,
            is_over: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Gives a task to a thread that waits; where none does, it is given back.
    pub fn give(&self, task: T) -> Option<T> {
        let mut state = self.lock();
        if state.tasks.len() >= state.waiting {
            return Some(task);
        }
        state.tasks.push_back(task);
        drop(state);
        self.changed.notify_one();
        None
    }

    /// Waits for a task; `None` once there will be no more.
    pub fn take(&self) -> Option<T> {
        let mut state = self.lock();
        state.waiting += 1;
        let mut state = self
            .changed
            .wait_while(state, |state| state.tasks.is_empty() && !state.is_over)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state.tasks.pop_front()
    }

    /// No thread waits any more once this is dropped, also by a panic.
    pub fn until_dropped(&self) -> Open<'_, T> {
        Open(self)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Open<'a, T>(&'a Workers<T>);

impl<T> Drop for Open<'_, T> {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_task_goes_to_a_thread_that_waits_and_every_thread_ends() {
        let workers = Workers::new();
        let (done, results) = mpsc::channel();
        let mut started = 0;
        std::thread::scope(|scope| {
            let _open = workers.until_dropped();
            for task in 0..1000 {
                let Some(task) = workers.give(task) else {
                    continue;
                };
                started += 1;
                let (done, workers) = (done.clone(), &workers);
                scope.spawn(move || {
                    let mut next = Some(task);
                    while let Some(task) = next {
                        done.send(task).unwrap();
                        next = workers.take();
                    }
                });
                // The next task comes when this one may have ended.
                std::thread::yield_now();
            }
        });
        drop(done);
        let mut all: Vec<i32> = results.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        assert!(started < 1000, "no thread took a second task");
    }
}
