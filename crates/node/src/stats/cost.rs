//! What it has taken to carry out a request. It travels with the answer to the gateway, which counts it: who looks at
//! the figures of a node sees what the node's own clients have asked for, no matter who has carried it out.

use group::cost::Cost;
use keyspace::DataCommand;
use resp::Args;
use state::Meter;

use crate::known::Known;
use crate::stats::timing::{Timings, Watch};

/// Who wants the times of a request's commands.
pub(crate) enum Measure<'a> {
    /// For a client of this node.
    Client(&'a mut Timings),
    /// For a gateway, which may want to know of them: see [`Measure::for_gateway`].
    Gateway(&'a mut Timings, &'a mut Cost, bool),
}

impl<'a> Measure<'a> {
    /// For a gateway, which may want to know of them. What was done for the request before is no part of its first.
    pub(crate) fn for_gateway(timings: &'a mut Timings, cost: &'a mut Cost, is_wanted: bool) -> Self {
        timings.break_off();
        Self::Gateway(timings, cost, is_wanted)
    }

    /// A command begins.
    #[inline]
    pub(crate) fn start(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<Watch> {
        match self {
            Self::Client(timings) => timings.start(Known::Data(command), args),
            Self::Gateway(timings, _, is_wanted) => timings.start_for_gateway(Known::Data(command), args, *is_wanted),
        }
    }

    /// It has ended.
    #[inline]
    pub(crate) fn stop(&mut self, watch: Option<Watch>, args: Args<'_>) {
        let Some(watch) = watch else { return };
        match self {
            Self::Client(timings) => timings.stop(watch, args),
            Self::Gateway(timings, cost, _) => cost.times.push(timings.stop_for_gateway(watch)),
        }
    }
}

impl Meter for Measure<'_> {
    type Watch = Watch;

    #[inline]
    fn start(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<Watch> {
        Measure::start(self, command, args)
    }

    #[inline]
    fn stop(&mut self, watch: Option<Watch>, args: Args<'_>) {
        Measure::stop(self, watch, args);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use stdx::{Duration, Instant};

    use super::*;
    use crate::blocking::lay_out;
    use crate::settings::Settings;

    /// A stopwatch by which a millisecond passes between two looks at it.
    fn stopwatch() -> Instant {
        thread_local!(static LOOKS: Cell<u64> = const { Cell::new(0) });
        let looks = LOOKS.with(|looks| looks.replace(looks.get() + 1));
        Instant::ZERO + Duration::from_millis(looks)
    }

    fn timings(settings: &[(&str, &str)]) -> Timings {
        let mut all = Settings::default();
        settings.iter().for_each(|(name, value)| all.set(name, value).expect("a parameter"));
        Timings::new(stopwatch, &all)
    }

    fn command(args: Args<'_>) -> &'static DataCommand {
        keyspace::resolve(args).expect("a command")
    }

    #[test]
    fn what_is_carried_out_for_a_gateway_is_measured_here_and_noted_there() {
        let (buffer, spans) = lay_out([&b"keys"[..], b"*"].into_iter());
        let args = Args::new(&buffer, &spans);
        let known = Known::Data(command(args));
        let mut here = timings(&[("latency-monitor-threshold", "1")]);
        let mut cost = Cost::default();
        let mut measure = Measure::for_gateway(&mut here, &mut cost, true);
        let watch = measure.start(command(args), args);
        measure.stop(watch, args);
        assert_eq!(cost.times, [Duration::from_millis(1)]);
        assert!(here.figures(true).is_empty());
        assert!(!here.has_slow());
        assert_eq!(here.delays.of(b"command").expect("it was here").longest_ms, 1);

        let mut there = timings(&[("latency-monitor-threshold", "1"), ("slowlog-log-slower-than", "1000")]);
        assert!(there.wants(known, args));
        there.note_answered(known, args, cost.times[0]);
        assert_eq!(there.figures(true)[0].1.nanos, 1_000_000);
        assert_eq!(there.take_slow().len(), 1);
        assert_eq!(there.delays.iter().count(), 0);
    }

    #[test]
    fn a_gateway_has_as_many_calls_measured_as_if_it_carried_them_out() {
        let (buffer, spans) = lay_out([&b"get"[..], b"key"].into_iter());
        let args = Args::new(&buffer, &spans);
        let (mut gateway, mut alone) = (timings(&[]), timings(&[]));
        for call in 0..100 {
            let is_wanted = gateway.wants(Known::Data(command(args)), args);
            assert_eq!(is_wanted, alone.start(Known::Data(command(args)), args).is_some(), "call {call}");
            let (mut timings, mut cost) = (timings(&[]), Cost::default());
            let mut measure = Measure::for_gateway(&mut timings, &mut cost, is_wanted);
            let watch = measure.start(command(args), args);
            measure.stop(watch, args);
            assert_eq!(cost.times.len(), usize::from(is_wanted));
        }
    }
}
