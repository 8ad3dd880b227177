//! The journal on a disk in memory.

mod crash;
mod damage;
mod memory_disk;
mod model;
mod open;
