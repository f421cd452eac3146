from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from amgc.cli import presets
from amgc.cli.flags import PHASES, parse
from amgc.cli.main import main
from amgc.data import data_sets
from amgc.features import extractors
from amgc.methods.registry import find, methods


def preset(text: str) -> str:
    Path("mine.toml").write_text(text)
    return "mine.toml"


def only(arguments: list[str]):
    (config,) = parse(arguments).configs.values()
    return config


def test_without_arguments_the_digits_are_run():
    parsed = parse([])
    assert list(parsed.configs) == ["finetune", "amgc", "joint"]
    assert {(config.data, config.features, config.tasks) for config in parsed.configs.values()} == {("digits", "convnet", 5)}


def test_where_to_log_is_a_list_of_names(capsys):
    assert only(["--method", "amgc"]).machine.log == ()
    assert only(["--method", "amgc", "--log", "tensorboard", "wandb"]).machine.log == ("tensorboard", "wandb")
    assert only(["--log", "wandb", "--method", "amgc"]).machine.log == ("wandb",)
    with pytest.raises(SystemExit):
        parse(["--method", "amgc", "--log", "paper"])
    assert "paper" in capsys.readouterr().err


def test_a_data_source_takes_the_place_of_a_preset():
    config = only(["cifar100"])
    assert (config.method, config.hyper, config.tasks) == ("amgc", find("amgc").hyper, 10)
    assert only(["--data", "cifar100"]) == config
    assert only(["folder:a/photos"]).features_options == {"stem": "imagenet"}


def test_flags_come_before_only_before_hyper_before_the_methods_defaults():
    name = preset('methods = ["amgc", "finetune"]\ntasks = 5\n[hyper.later]\nepochs = 7\nhead_lr = 0.5\n[only.amgc]\n'
                  "margin = 0.3\n[only.amgc.later]\nhead_lr = 0.25\nmomentum = 0.5\n")  # fmt: skip
    configs = parse([name, "--later.momentum", "0.8"]).configs
    amgc, finetune = configs["amgc"].hyper, configs["finetune"].hyper
    assert (amgc.margin, amgc.later.epochs, amgc.later.head_lr, amgc.later.momentum) == (0.3, 7, 0.25, 0.8)
    assert (finetune.later.epochs, finetune.later.head_lr, finetune.later.momentum) == (7, 0.5, 0.8)
    assert amgc.first == find("amgc").hyper.first
    assert parse([name, "--amgc.margin", "0.1"]).configs["amgc"].hyper.margin == 0.1


def test_phases_that_differ_between_methods_stay_apart_unless_a_flag_is_given():
    name = preset('methods = ["amgc", "finetune"]\n')
    configs = parse([name]).configs
    assert [config.hyper for config in configs.values()] == [find("amgc").hyper, find("finetune").hyper]
    assert {config.hyper.first.epochs for config in parse([name, "--first.epochs", "3"]).configs.values()} == {3}


def test_one_methods_hyper_parameters_have_no_prefix():
    config = only(["digits", "--method", "amgc", "--margin", "0.1", "--balance", "per_class", "--later.extractor-lr", "1e-5"])
    assert (config.hyper.margin, config.hyper.balance, config.hyper.later.extractor_lr) == (0.1, "per_class", 1e-5)


def test_paths_are_absolute_so_that_a_run_can_be_resumed_from_anywhere():
    here = Path().resolve()
    given = ["--data.root", "d", "--features.weights", "w.pth", "--feature-cache", "f", "--start", "../run"]
    config = only(["imagenet-subset", "--data.classes", "list.txt", "--data.cache", "c", *given])
    assert config.data_options == {"root": f"{here}/d", "classes": f"{here}/list.txt", "cache": f"{here}/c"}
    assert config.features_options["weights"] == f"{here}/w.pth"
    assert (config.machine.feature_cache, config.machine.start) == (f"{here}/f", f"{here.parent}/run")
    assert only(["npz:a/../b.npz"]).data == f"npz:{here}/b.npz" and only(["cifar100"]).data_options == {}
    assert only(["folder:~/pictures"]).data == f"folder:{Path.home()}/pictures"


def test_none_is_a_value_like_others():
    assert only(["digits", "--method", "amgc-closed", "--ridge", "0.1"]).hyper.ridge == 0.1
    assert only(["digits", "--method", "amgc-closed", "--ridge", "None"]).hyper.ridge is None
    assert only(["digits", "--method", "lda", "--shrinkage", "None"]).hyper.shrinkage is None
    name = preset('methods = ["amgc"]\n[machine]\nfeature_cache = "rows"\n')
    assert only([name, "--feature-cache", "None"]).machine.feature_cache is None
    assert "cache" not in only(["folder:x"]).data_options and only(["folder:x", "--data.cache", "False"]).data_options == {
        "cache": False
    }


@pytest.mark.parametrize("flag", ["--log", "--first.milestones", "--first.epochs"])
def test_none_is_refused_where_it_is_no_value(flag, capsys):
    with pytest.raises(SystemExit):
        parse(["digits", flag, "None"])
    assert flag in capsys.readouterr().err


def test_help_spells_none_as_it_is_typed_and_only_where_it_can_be(capsys):
    assert main(["run", "--method", "amgc-closed", "lda", "--help"]) == 0
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--amgc-closed.ridge {None}|FLOAT" in output and "None: a share of each" in output and "None: towards" in output
    assert "--first.epochs INT" in output and "--first.schedule {cosine,step,constant}" in output
    assert main(["resume", "--help"]) == 0
    assert "{None}" not in capsys.readouterr().out


def test_a_flag_about_tasks_replaces_all_that_the_preset_says_about_them():
    config = only(["digits", "--method", "amgc", "--first-classes", "4", "--increment", "3"])
    assert (config.tasks, config.first_classes, config.increment) == (None, 4, 3)
    assert only(["digits", "--method", "amgc", "--sizes", "4", "6"]).sizes == (4, 6)


def test_options_of_data_and_features_and_the_machine_are_flags():
    config = only(["folder:x", "--data.size", "32", "--features.width", "0.5", "--threads", "3", "--natural-order"])
    assert (config.data_options, config.features_options) == ({"size": 32}, {"stem": "imagenet", "width": 0.5})
    assert (config.machine.threads, config.natural_order) == (3, True)


@pytest.mark.parametrize("name", sorted(methods()))
def test_help_names_every_hyper_parameter_with_its_source(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # one column: of several, a line would hold parts of different texts
    assert main(["run", "cifar100", "--method", name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    entry = find(name)
    for own in (field for field in fields(entry.hyper) if field.name not in PHASES):
        assert f"--{own.name.replace('_', '-')}" in text and own.metadata["help"] in text
        source = own.metadata["source"] or "ours"
        assert (source if getattr(entry.hyper, own.name) == own.default else f"{name}'s own") in text
    assert "--first.epochs" in text and "--later.extractor-lr" in text
    assert ("--second.epochs" in text) == hasattr(entry.hyper, "second")


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_names_what_exists(name):
    found = presets.named(name)
    assert found.about and found.cost
    assert found.data in data_sets() and found.features in extractors()
    assert list(parse([name]).configs) == list(found.methods)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("taks = 5", "there is no setting 'taks'; did you mean 'tasks'?"),
        ("[hypr]\nx = 1", "did you mean 'hyper'?"),
        ("[hyper.first]\nepoch = 5", "there is no setting 'first.epoch'; did you mean 'epochs'?"),
        ('[hyper.first]\nepochs = "x"', "first.epochs must be int, not 'x'."),
        ("[only.amcg]\nmargin = 1", "did you mean 'amgc'?"),
        ("[only.amgc]\nmargn = 1", "did you mean 'margin'?"),
        ("[paper]\namcg = { LA = 1.0 }", "did you mean 'amgc'?"),
        ("[machine]\ndevice = 'gpu'", "device must be one of auto, cpu, cuda"),
        ("[data_options]\nsize = 3", "has no option 'size'"),
        ("[features_options]\nwitdh = 3", "has no option 'witdh'"),
        ("tasks = = 5", "invalid TOML"),
        ("hyper = 3", "hyper must be a table"),
    ],
)
def test_errors_in_a_preset_name_its_file(text, said, capsys):
    assert main(["run", preset(text)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("amgc: error: mine.toml: ") and said in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "did you mean 'amgc run'?"),
        (["run", "digit"], "did you mean 'digits'?"),
        (["run", "--method", "amgd"], "did you mean 'amgc'?"),
        (["run", "--data", "digts"], "did you mean 'digits'?"),
        (["run", "--features", "resnt18"], "did you mean 'resnet18'?"),
        (["run", "digits", "--first.epoch", "3"], "--first.epochs"),
        (["run", "--seed", "3", "digits"], "PRESET comes first"),
        (["run", "--method", "amgc", "digits"], "amgc run digits --method amgc"),
        (["run", "--method", "amgc", "amgc"], "each method can be named once"),
        (["run", "nowhere.toml"], "there is no preset file 'nowhere.toml'"),
        (["run", "digits", "--tasks", "11"], "11 tasks need at least 11 classes"),
        (["run", "digits", "--tasks", "3"], "--increment 4"),
        (["run", "digits", "--first-classes", "4"], "4 classes in task 1 leave 6 of 10"),
        (["run", "digits", "--tasks", "2", "--increment", "5"], "--first-classes and --increment, or --sizes"),
        (["run", "digits", "--out", "caf\udce9"], "'caf\\udce9' is not UTF-8"),
        (["run", "imagenet-subset", "--data.root", "nowhere"], "nowhere/imagenet100'. An ImageNet folder has train/WNID"),
        (["run", "digits", "--classes", "1", "zebra", "--tasks", "2"], "no class is called 'zebra'"),
        (["run", "digits", "--method", "amgc", "--margin", "-1"], "margin must be finite"),
        (["run", "digits", "--start", "nowhere"], "nowhere' has no task-1.safetensors"),
        (["run", "cifar100", "--data.root", "nowhere"], "nowhere': neither cifar-100-python with train, test, meta"),
        (["run", "npz:nowhere.npz"], "nowhere.npz"),
        (["show", "nowhere"], "there is no folder 'nowhere'"),
        (["resume", "nowhere"], "there is no folder 'nowhere'"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(arguments, said, capsys):
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert said in output.err and "Traceback" not in output.err and not output.out
    assert not Path("runs").exists()
