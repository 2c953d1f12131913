//! (skeleton)
pub struct Config;
