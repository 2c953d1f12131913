//! One voice for all threads of a build.

use std::sync::{Mutex, PoisonError};

use super::events::{Event, Reporter, Reporters};

pub struct Talk(Mutex<Reporters>);

impl Talk {
    #[must_use]
    pub fn new(reporters: Reporters) -> Self {
        Self(Mutex::new(reporters))
    }

    pub fn report(&self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).report(event);
    }
}
