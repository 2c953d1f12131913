//! Where all threads of a build report what happens: one event at a time reaches the reporters.

use std::sync::{Mutex, PoisonError};

use super::events::{Event, Reporter, Reporters};

/// The reporters of a build, shared by its threads.
pub struct EventSink(Mutex<Reporters>);

impl EventSink {
    #[must_use]
    pub fn new(reporters: Reporters) -> Self {
        Self(Mutex::new(reporters))
    }

    pub fn report(&self, event: &Event) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .report(event);
    }
}
