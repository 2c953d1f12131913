//! Token files: Megatron's indexed datasets, `PREFIX.idx` beside `PREFIX.bin`.
//!
//! [`Index`] reads any bytes as an `.idx`, [`Dataset`] both files, [`Samples`] cuts them into the sequences that every
//! trainer of ours sees in the same order; [`verify()`] tells what is wrong with them, [`fingerprint()`] names their content,
//! [`encode()`] makes them from text.

mod dataset;
mod encode;
mod fingerprint;
mod index;
mod samples;
mod verify;
mod writer;

pub use dataset::{Dataset, prefix_of};
pub use encode::{Encode, Encoded, Eod, encode};
pub use fingerprint::{fingerprint, tokenizer_fingerprint};
pub use index::{Damage, Dtype, Index};
pub use samples::Samples;
pub use verify::{Report, verify, verify_sampled};
pub use writer::Writer;
