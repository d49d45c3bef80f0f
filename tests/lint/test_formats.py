"""What files set, by their format: name, value and line, and what cannot be read."""

import pytest
from ddp_doctor import lint
from ddp_doctor.lint import Found, Problem, dockerfile, manifest, nccl_conf, shell


def found(items):
    """name=value of each variable, in order."""
    return [f"{item.name}={item.value}" for item in items if isinstance(item, Found)]


def problems(items):
    """line and kind of each problem."""
    return [(item.line, item.kind) for item in items if isinstance(item, Problem)]


# ---------------------------------------------------------------- which format


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("job.sbatch", "#!/bin/bash\n", shell.TITLE),
        ("train.env", "NCCL_DEBUG=INFO\n", shell.TITLE),
        ("Dockerfile.gpu", "", dockerfile.TITLE),
        ("image", "# syntax=x\nARG V=1\nFROM a:$V\n", dockerfile.TITLE),
        ("compose.yml", "services: {}\n", manifest.TITLE),
        ("-", "apiVersion: v1\nkind: Pod\n", manifest.TITLE),
        ("nccl.conf", "NCCL_DEBUG=INFO\n", nccl_conf.TITLE),
        (".nccl.conf", "", nccl_conf.TITLE),
    ],
)
def test_a_format_is_known_by_name_or_content(name, text, title):
    assert title == lint.format_of(name, text).TITLE


# ---------------------------------------------------------------- shell


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1", ["A=1"]),
        ("export A=1 B='x y' C # D=2", ["A=1", "B=x y"]),
        ('A="x \\"y\\"" B=x\\ y', ['A=x "y"', "B=x y"]),
        ("A=1 B=2 torchrun --x C=3", ["A=1", "B=2"]),
        ("env -u X A=1 torchrun", ["A=1"]),
        ("if true; then export A=1; fi && B=2", ["A=1", "B=2"]),
        ("export \\\n  A=1 \\\n  B=2", ["A=1", "B=2"]),
        ("A=${X:-1} B=$(hostname -s) C=`date +%s`", ["A=${X:-1}", "B=$", "C=$(...)"]),
        ("A+=:/x", ["A=${A}:/x"]),
        ("A=(1 2)", []),
        ("declare -x A=1; readonly B=2", ["A=1", "B=2"]),
        ("setenv A 1", ["A=1"]),
        ("set -gx A 1", ["A=1"]),
        ("set -x", []),
        # what a launcher hands on
        ("srun --export=ALL,A=1,B='x' prog", ["A=1", "B=x"]),
        ("srun --export \"ALL,A='x,y'\" prog", ["A=x,y"]),
        ("#SBATCH --export=ALL,A=1\n#SBATCH -N 2", ["A=1"]),
        ("#PBS -v A=1,B=2", ["A=1", "B=2"]),
        ("mpirun -x A=1 \\\n -x PATH -x B=2 prog", ["A=1", "B=2"]),
        ("mpiexec -genv A 1 -genv B=2 prog", ["A=1", "B=2"]),
        ("sudo docker run -e A=1 --env=B=2 --env C=3 image", ["A=1", "B=2", "C=3"]),
        ("srun bash -lc 'export A=1; B=2 torchrun'", ["A=1", "B=2"]),
        # what sets nothing
        ("# export A=1", []),
        ("echo A=1; echo -e B=2; printf '%s' C=3", []),
        ('[ "$A" = "1" ] && [[ $B == 2 ]]', []),
        ("cat > x.env <<EOF\nA=1\nEOF\nB=2", ["B=2"]),
        ("cat <<-'E1' <<E2\nA=1\n\tE1\nB=2\nE2\nC=3", ["C=3"]),
        ("prog <<< A=1\nB=2", ["B=2"]),
        ("python x.py trainer.A=1 A=1", []),
    ],
)
def test_shell(text, variables):
    assert found(shell.variables(text)) == variables
    assert not problems(shell.variables(text))


def test_lines_are_those_of_the_file():
    text = "\n# x\nexport A=1 \\\n  B=2\ncat <<X\n1\nX\nsrun bash -c '\n  C=3\n'\nD='4\n5' E=6\n"
    assert [(i.line, i.name) for i in shell.variables(text)] == [(3, "A"), (4, "B"), (9, "C"), (11, "D"), (12, "E")]


@pytest.mark.parametrize(
    ("text", "variables", "wrong"),
    [
        ("A='1\nB=2\nC=3", ["B=2", "C=3"], [(1, "unreadable")]),
        ("A='1\nB=2\nC='3\nD=4", ["B=2", "D=4"], [(1, "unreadable"), (3, "unreadable")]),
        ('A=1 B="2\nC=3', ["C=3"], [(1, "unreadable")]),
        ("A=1\r\nB=2\r\n", ["A=1", "B=2"], [(1, "misread")]),
        ("A = 1\nB=2", ["B=2"], [(1, "misread")]),
        ("export A =1", [], [(1, "misread")]),
        ("srun --export=ALL,A=mlx5_0,mlx5_1 x", ["A=mlx5_0"], [(1, "misread")]),
        ("srun --export=A=1,HOME,B=2 x", ["A=1", "B=2"], []),
        ("A=1\\", ["A=1"], []),
    ],
)
def test_faults_of_shell_text_leave_the_rest(text, variables, wrong):
    items = list(shell.variables(text))
    assert (found(items), problems(items)) == (variables, wrong)


# ---------------------------------------------------------------- Dockerfile and nccl.conf


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ('ENV A=1 B="2 3" C=4\\ 5', ["A=1", "B=2 3", "C=4 5"]),
        ("ENV A 1 2", ["A=1 2"]),
        ("env A=1\nONBUILD ENV B=2", ["A=1", "B=2"]),
        ("ENV A=1 \\\n  # why\n\n  B=2\nENV C=3", ["A=1", "B=2", "C=3"]),
        ("# escape=`\nENV A=1 `\n B=2", ["A=1", "B=2"]),
        ("ENV A=1\r\nENV B=2\r\n", ["A=1", "B=2"]),
        ("ARG A=1\nRUN B=1 make\nRUN <<EOF\nENV C=1\nEOF\nENV D=$X", ["D=$X"]),
        ('CMD ["env", "A=1", "torchrun"]\nENTRYPOINT B=2 torchrun', ["A=1", "B=2"]),
        ("#ENV A=1", []),
    ],
)
def test_dockerfile(text, variables):
    assert found(dockerfile.variables("FROM x\n" + text if text[:9] != "# escape=" else text)) == variables


def test_lines_of_a_dockerfile():
    text = "FROM x\nENV A=1 \\\n  # why\n  B=2\nENV C 3\n"
    assert [(i.line, i.name) for i in dockerfile.variables(text)] == [(2, "A"), (4, "B"), (5, "C")]


def test_nccl_conf_is_read_as_nccl_reads_it():
    assert found(nccl_conf.variables('A = 1\n#B=2\nexport C="3"')) == ["A = 1", 'export C="3"']


# ---------------------------------------------------------------- YAML

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  containers:
  - name: worker
    env: &common
    - name: A
      value: "1"
    - {name: B, valueFrom: {fieldRef: {fieldPath: x}}}
    command: [bash, -c]
    args:
    - |
      set -e
      export C=3
  - name: side
    env:
    - {name: A, value: "{{ .Values.a }}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  D: "4"
"""


def test_containers_have_environments_of_their_own():
    items = [(item.line, item.scope, f"{item.name}={item.value}") for item in manifest.variables(POD)]
    assert items == [
        (9, "worker", "A=1"),
        (15, "worker", "C=3"),
        (18, "side", "A=$(...)"),
        (24, "settings", "D=4"),
    ]


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("services:\n  a:\n    environment: {A: 1, B: , C: yes}", ["A=1", "C=yes"]),
        ("services:\n  a:\n    environment: [A=1, B]", ["A=1"]),
        ("x: &x {A: 1}\nservices: {a: {environment: {<<: *x, B: 2}}}", ["A=1", "B=2"]),
        ("x: &x {A: 1}\ny: &y {B: 2}\na: {environment: {<<: [*x, *y]}}", ["A=1", "B=2"]),
        ("env: {A: 1}\njobs: {b: {env: {B: 2}}}", ["A=1", "B=2"]),
        ('{"env": [{"name": "A", "value": "1"}]}', ["A=1"]),
        ("a:\n  command: [mpirun, -x, A=1, -x, B=2, prog]", ["A=1", "B=2"]),
        ("env:\n  {{- range .x }}\n  A: {{ .y }}\n  {{- end }}\n", ["A=$(...)"]),
        ("env: {A: !secret x}", ["A=x"]),
        ("a: &a [*a]", []),
        ("just text", []),
        ("", []),
    ],
)
def test_yaml(text, variables):
    assert found(dict.fromkeys(manifest.variables(text))) == variables


@pytest.mark.parametrize(
    ("text", "variables", "wrong"),
    [
        ("env: {A: 1}\n---\nenv: [b\n---\nenv: {C: 3}", ["A=1", "C=3"], [(4, "unreadable")]),
        ("env: *nobody\n---\nenv: {B: 2}", ["B=2"], [(1, "unreadable")]),
        ("env:\n\tA: 1", [], [(2, "unreadable")]),
        ("[" * 5000 + "\n---\nenv: {A: 1}", ["A=1"], [(1, "unreadable")]),
        ("env: {A: 1}\n" + "# filler\n" * 120_000 + "env: {B: 2}\n", ["A=1"], [(116_509, "unreadable")]),
    ],
)
def test_faults_in_yaml_leave_the_rest(text, variables, wrong):
    items = list(dict.fromkeys(manifest.variables(text)))
    assert found(items) == variables
    assert problems(items) == wrong


def test_kubernetes_takes_strings_alone():
    text = "apiVersion: v1\nkind: Pod\nspec:\n  env:\n  - {name: A, value: 1}\n  - {name: B, value: '1'}\n"
    assert problems(manifest.variables(text)) == [(5, "misread")]
    assert not problems(manifest.variables(text.replace("apiVersion: v1\n", "")))


def test_a_file_of_aliases_on_aliases_costs_what_its_text_costs():
    levels = "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 60))
    text = f"b0: &b0 {{env: {{A: 1}}}}\n{levels}env: *b59\n"
    assert found(manifest.variables(text)) == ["A=1"]  # 9 ** 59 of them would never end
