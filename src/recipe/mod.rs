//! (skeleton)
pub struct Recipe;
