//! What a group's replicas do, told as plays and checked at the edges.

mod cluster;
mod cost;
mod hostile;
mod plays;
mod reproducible;
