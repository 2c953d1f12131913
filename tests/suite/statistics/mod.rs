//! What the statistics promise, shown on data whose truth is known: docs/METRICS.md, "Statistics".
mod noise;
mod repeats;
mod scipy;
mod sequential;
mod shapes;
mod warm_up;
