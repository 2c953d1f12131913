//! Where all threads of a build report what happens: one event at a time reaches the reporters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::events::{Event, Reporter};

type Reporters = Vec<Box<dyn Reporter>>;

/// The reporters of a build, shared by its threads.
#[derive(Default)]
pub struct EventSink(Mutex<Reporters>);

impl EventSink {
    pub fn report(&self, event: &Event) {
        let mut reporters = self.reporters();
        reporters.iter_mut().for_each(|one| one.report(event));
    }

    /// One more that listens from now on.
    pub fn add(&self, reporter: impl Reporter + 'static) {
        self.reporters().push(Box::new(reporter));
    }

    /// One more that listens to what `run` reports.
    pub fn with<T>(&self, reporter: impl Reporter + 'static, run: impl FnOnce() -> T) -> T {
        self.add(reporter);
        let result = run();
        self.reporters().pop();
        result
    }

    fn reporters(&self) -> MutexGuard<'_, Reporters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
