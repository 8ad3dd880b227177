//! The journal on a disk in memory.

mod checkpoint;
mod crash;
mod damage;
mod memory_disk;
mod model;
mod open;
mod reader;
