//! Facts of the figures → English. Every sentence that a figure comes with stands here, in the file
//! of the same name as the file of its facts in `tprimat-figures`, so that all of them can be read
//! through.
//!
//! A sentence has no capital and no full stop, for it may follow a name or stand in a list.

mod comparison;
mod facts;
mod gate;
mod metric;
mod results;
mod run;
mod words;

pub use comparison::{absent, change, changed_setting, gaps, not_identical, standing};
pub use facts::{each, in_words, said};
pub use gate::{dropped_words, fault, hours_or_days};
pub use results::{arithmetic, difference, field, oddity};
pub use run::{disturbances, uncounted, why_not};
pub use words::{few, units};

use tprimat_figures as figures;
