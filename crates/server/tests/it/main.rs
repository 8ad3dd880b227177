//! Tests of the binary from outside: real processes, real sockets, real files, and the accidents that befall them.

mod availability;
mod backup;
mod catch_up;
mod clients;
mod cluster;
mod compare;
mod crash_disk;
mod damage;
mod doctor;
mod harness;
mod import;
mod join;
mod manual;
mod migrate;
mod operation;
mod pubsub;
mod scripts;
mod serve;
mod tls;
mod tools;
mod torture;
mod users;
